"""The recorded samples: what a file holds, reading it and writing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import files

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Step:
    """Times of one case, in ticks, with what it has to do at least.

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
class Roofline:
    """What was measured of one framework on one device.

    Attributes:
        device, mode: as the framework was made.
        machine: the device's model besides the processor, cores and library versions.
        started: ISO 8601.
        tick_s: length of a tick in seconds.
        rates: operations a second of the best product, by format.
        bandwidth: bytes a second of the best sum.
    """

    framework: str
    version: str
    device: str
    mode: str
    machine: str
    started: str
    tick_s: float
    rates: Mapping[str, float]
    bandwidth: float
    steps: tuple[Step, ...]

    def seconds(self, step: Step) -> float:
        """Median time of a step."""
        return float(np.median(step.ticks)) * self.tick_s

    def parts(self, step: Step) -> tuple[float, float]:
        """Seconds that the step's operations and its bytes take at the measured rates."""
        return step.operations / self.rates[step.format], step.moved / self.bandwidth

    def share(self, step: Step) -> float:
        """The longer of the two, over the step's time: 1 is as fast as the device can."""
        return max(self.parts(step)) / self.seconds(step)


def path(framework: str, device: str) -> Path:
    """Where the samples of a framework on a device are kept."""
    return FOLDER / f"{framework}-{device}.json"


def save(roofline: Roofline, file: Path) -> None:
    """Writes the samples, one step a line."""
    files.save(asdict(roofline), "steps", file)


def load(file: Path) -> Roofline:
    """Reads samples.

    Raises:
        ValueError: the file holds none.
        OSError: it cannot be read.
    """
    return files.load(file, _made, "holds no samples")


def _made(content: dict[str, Any]) -> Roofline:
    steps = tuple(Step(**{**step, "ticks": tuple(step["ticks"])}) for step in content.pop("steps"))
    return Roofline(**content, steps=steps)
