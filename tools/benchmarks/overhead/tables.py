"""The page's block: a table of the committed samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tools.benchmarks.overhead.samples import STORE, Overhead

LIMIT = 1.05
"""Largest accepted ratio of a step through an adapter to a native one."""


def blocks() -> Mapping[str, str]:
    """The table of all committed samples, and when and where they were taken.

    Raises:
        ValueError: a file of samples holds none.
        OSError: it cannot be read.
    """
    return {"overhead": "\n".join(_lines(STORE.all()))}


def _lines(samples: Sequence[Overhead]) -> Iterator[str]:
    yield "| framework | step | by hand | through the adapter | interval | more a step |"
    yield "|---|---|--:|--:|--:|--:|"
    for overhead in samples:
        for case in overhead.cases:
            native, adapter = (np.asarray(times) * overhead.tick_s for times in (case.native, case.adapter))
            middle, more = float(np.median(adapter / native)), float(np.median(adapter - native))
            cells = (
                overhead.label,
                case.case,
                f"{1e3 * float(np.median(native)):.2f} ms",
                f"× {middle:.3f}",
                f"{case.ratio.low:.3f} to {case.ratio.high:.3f}",
                f"{1e6 * more:.0f} µs",
            )
            yield f"| {' | '.join(cells)} |"
    yield ""
    for overhead in samples:
        pairs = len(overhead.cases[0].native)
        yield f"- {overhead.taken}; {pairs} pairs a step."


def beyond(overhead: Overhead) -> list[str]:
    """One line for each case whose whole interval lies beyond the limit."""
    return [
        f"{overhead.framework}, {case.case}: {case.ratio.summary}, want at most {LIMIT}"
        for case in overhead.cases
        if case.ratio.low > LIMIT
    ]
