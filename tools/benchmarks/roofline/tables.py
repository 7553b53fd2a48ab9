"""The page's block: tables of the committed samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tools.benchmarks.roofline.samples import STORE, Roofline


def blocks() -> Mapping[str, str]:
    """The tables of all committed samples, and when and where they were taken.

    Raises:
        ValueError: a file of samples holds none.
        OSError: it cannot be read.
    """
    return {"roofline": "\n".join(_lines(STORE.all()))}


def _lines(samples: Sequence[Roofline]) -> Iterator[str]:
    yield "| framework | format | products | memory |"
    yield "|---|---|--:|--:|"
    for roofline in samples:
        for name, rate in roofline.rates.items():
            yield _row(roofline.label, name, f"{rate / 1e9:,.1f} GFLOP/s", f"{roofline.bandwidth / 1e9:,.1f} GB/s")
    yield ""
    yield "| framework | step | format | operations | bytes | computing | moving | took | of the roof |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for roofline in samples:
        for step in roofline.steps:
            computing, moving = roofline.parts(step)
            yield _row(
                roofline.label,
                step.fixture,
                step.format,
                f"{step.operations / 1e9:,.2f} GFLOP",
                f"{step.moved / 1e6:,.1f} MB",
                f"{1e3 * computing:,.2f} ms",
                f"{1e3 * moving:,.2f} ms",
                f"{1e3 * roofline.seconds(step):,.2f} ms",
                f"{roofline.share(step):.1%}",
            )
    yield ""
    for roofline in samples:
        steps = len(roofline.steps[0].ticks)
        yield f"- {roofline.label}: {roofline.started}; {roofline.machine}; median of {steps} steps."


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
