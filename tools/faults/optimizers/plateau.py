"""Faults of a schedule that follows a metric: what counts as an improvement, when the rate falls, what is saved."""

from __future__ import annotations

from fixtures.plateau import PlateauRule
from tools.faults import fault


@fault("https://github.com/keras-team/keras/issues/17012", "optimizer.schedules")
class PlateauForgetsItsCounters(PlateauRule):
    """A restored schedule has the rate, and neither the best metric nor the counters."""

    def state(self) -> dict[str, float | None]:
        return {"rate": self.rate}


@fault("https://github.com/keras-team/keras/issues/3991", "optimizer.schedules")
class CooldownIsOneShort(PlateauRule):
    """The last metric of a cooldown counts."""

    def fall(self) -> None:
        super().fall()
        self.cooling = max(0, self.cooling - 1)


@fault("https://github.com/google-deepmind/optax/pull/1767", "optimizer.schedules")
class NegativeMetricsAlwaysImprove(PlateauRule):
    """A relative threshold is a share of the best metric itself where its magnitude is documented."""

    def margin(self, best: float) -> float:
        return super().margin(best) * (-1.0 if best < 0 and self.plateau.relative else 1.0)


@fault("https://github.com/Bjarten/early-stopping-pytorch/pull/28", "optimizer.schedules")
class FirstMetricIsBestWhateverItIs(PlateauRule):
    """NaN as the first metric is the best one, on which none improves."""

    def improves(self, metric: float) -> bool:
        return self.best is None or super().improves(metric)
