"""The recorded times of steps by hand and through an adapter, and the table of the committed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from results.compare.ratio import Ratio, ratio
from tools.benchmarks.kit import Origin, Store
from tools.docs.generate import table

LIMIT = 1.05
"""Largest accepted ratio of a step through an adapter to a native one."""


@dataclass(frozen=True)
class CaseTimes:
    """Times of one case in ticks; time i of one side was taken next to time i of the other."""

    case: str
    native: tuple[int, ...]
    adapter: tuple[int, ...]

    @property
    def ratio(self) -> Ratio:
        """The adapter's time over that of the step written by hand."""
        return ratio(self.native, self.adapter)


@dataclass(frozen=True)
class Overhead(Origin):
    """Measurements of one framework; `tick_s` is the length of a tick in seconds."""

    tick_s: float
    cases: tuple[CaseTimes, ...]


STORE = Store(Path(__file__).parent / "samples", Overhead, "cases")


def blocks() -> Mapping[str, str]:
    """The table of all committed samples, and when and where they were taken; it fails as `Store.all`."""
    samples, rows = STORE.all(), []
    for overhead in samples:
        for case in overhead.cases:
            native, adapter = (np.asarray(times) * overhead.tick_s for times in (case.native, case.adapter))
            cells = (
                f"{1e3 * float(np.median(native)):.2f} ms",
                f"× {float(np.median(adapter / native)):.3f}",
                f"{case.ratio.low:.3f} to {case.ratio.high:.3f}",
                f"{1e6 * float(np.median(adapter - native)):.0f} µs",
            )
            rows.append((overhead.label, case.case, *cells))
    lines = [
        table(("framework", "step", "by hand", "through the adapter", "interval", "more a step"), rows, right=4),
        "",
    ]
    for each in samples:
        lines.append(f"- {each.framework}: {each.started}; {each.machine}; {len(each.cases[0].native)} pairs a step.")
    return {"overhead": "\n".join(lines)}


def beyond(overhead: Overhead) -> list[str]:
    """One line for each case whose whole interval lies beyond the limit."""
    return [
        f"{overhead.framework}, {case.case}: {case.ratio.summary}, want at most {LIMIT}"
        for case in overhead.cases
        if case.ratio.low > LIMIT
    ]
