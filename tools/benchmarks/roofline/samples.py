"""The recorded rates of devices and times of steps, and the tables of the committed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.benchmarks.kit import Origin, Store
from tools.docs.generate import table


@dataclass(frozen=True)
class StepTimes:
    """Times of one case, in ticks, with its minimum work.

    Attributes:
        format: of its products.
        operations: multiplications and additions in its products.
        moved: bytes that it moves at least.
    """

    fixture: str
    format: str
    operations: int
    moved: int
    ticks: tuple[int, ...]


@dataclass(frozen=True)
class Roofline(Origin):
    """Measurements of one framework on one device, whose model precedes the machine's.

    Attributes:
        tick_s: length of a tick in seconds.
        rates: operations a second of the best product, by format.
        bandwidth: bytes a second of the best sum.
    """

    tick_s: float
    rates: Mapping[str, float]
    bandwidth: float
    steps: tuple[StepTimes, ...]

    def seconds(self, step: StepTimes) -> float:
        """Median time of a step."""
        return float(np.median(step.ticks)) * self.tick_s

    def parts(self, step: StepTimes) -> tuple[float, float]:
        """Seconds that the step's operations and its bytes take at the measured rates."""
        return step.operations / self.rates[step.format], step.moved / self.bandwidth

    def share(self, step: StepTimes) -> float:
        """The longer of the two, over the step's time: 1 is as fast as the device can."""
        return max(self.parts(step)) / self.seconds(step)


STORE = Store(Path(__file__).parent / "samples", Roofline, "steps")


def blocks() -> Mapping[str, str]:
    """The tables of all committed samples, and when and where they were taken; it fails as `Store.all`."""
    samples = STORE.all()
    rates = [
        (each.label, name, f"{rate / 1e9:,.1f} GFLOP/s", f"{each.bandwidth / 1e9:,.1f} GB/s")
        for each in samples
        for name, rate in each.rates.items()
    ]
    steps = [
        (
            each.label,
            step.fixture,
            step.format,
            f"{step.operations / 1e9:,.2f} GFLOP",
            f"{step.moved / 1e6:,.1f} MB",
            *(f"{1e3 * seconds:,.2f} ms" for seconds in (*each.parts(step), each.seconds(step))),
            f"{each.share(step):.1%}",
        )
        for each in samples
        for step in each.steps
    ]
    columns = ("operations", "bytes", "computing", "moving", "took", "of the roof")
    lines = [
        table(("framework", "format", "products", "memory"), rates, right=2),
        "",
        table(("framework", "step", "format", *columns), steps, right=6),
        "",
    ]
    for each in samples:
        lines.append(f"- {each.label}: {each.started}; {each.machine}; median of {len(each.steps[0].ticks)} steps.")
    return {"roofline": "\n".join(lines)}
