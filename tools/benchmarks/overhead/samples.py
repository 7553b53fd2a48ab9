"""The recorded samples: times of steps by hand and through an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from results.compare.ratio import Ratio, ratio
from tools.benchmarks.kit.samples import Origin, Store


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
