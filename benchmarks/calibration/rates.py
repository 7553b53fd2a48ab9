"""How often something happened, and how often it may happen in truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """`count` of `total`."""

    count: int
    total: int

    @classmethod
    def of(cls, events: Iterable[bool]) -> Rate:
        """How many of `events` are true."""
        found = list(events)
        return cls(sum(found), len(found))

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The exact interval of Clopper & Pearson 1934, two-sided, CONFIDENCE."""
        found = stats.binomtest(self.count, self.total).proportion_ci(CONFIDENCE, method="exact")
        return float(found.low), float(found.high)

    @property
    def told(self) -> str:
        """The share and its interval in percent."""
        low, high = self.interval
        return f"{_percent(self.share)} % ({_percent(low)}–{_percent(high)})"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}" if 0 < share < 1 else f"{100 * share:.0f}"
