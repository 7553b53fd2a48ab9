"""The recorded samples: a device's rates, and times of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.benchmarks.kit.samples import Origin, Store


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
