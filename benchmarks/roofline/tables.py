"""The page's block: what the committed samples come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.roofline.samples import FOLDER, Roofline, load


def block() -> str:
    """The tables of all committed samples, and when and where they were taken.

    Raises:
        ValueError: a file of samples holds none.
        OSError: it cannot be read.
    """
    return "\n".join(_lines([load(file) for file in sorted(FOLDER.glob("*.json"))]))


def _lines(found: Iterable[Roofline]) -> Iterator[str]:
    found = list(found)
    yield "| framework | format | products | memory |"
    yield "|---|---|--:|--:|"
    for roofline in found:
        for name, rate in roofline.rates.items():
            yield _row(_place(roofline), name, f"{rate / 1e9:,.1f} GFLOP/s", f"{roofline.bandwidth / 1e9:,.1f} GB/s")
    yield ""
    yield "| framework | step | format | operations | bytes | computing | moving | took | of the roof |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for roofline in found:
        for step in roofline.steps:
            computing, moving = roofline.parts(step)
            yield _row(
                _place(roofline),
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
    for roofline in found:
        steps = len(roofline.steps[0].ticks)
        yield f"- {_place(roofline)}: {roofline.started}; {roofline.machine}; median of {steps} steps."


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _place(roofline: Roofline) -> str:
    return f"{roofline.framework} {roofline.version}, {roofline.device} {roofline.mode}"
