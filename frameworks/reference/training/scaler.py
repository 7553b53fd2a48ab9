"""The loss scale as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fixtures.recipe import DynamicScaling, Scaling, StaticScaling
from frameworks.contract import ScalerRule


def _float32(value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


@dataclass(frozen=True)
class LossScale:
    """A loss scale in float32, with the rule that adjusts it.

    adjust(finite):
        not finite:                    scale ← max(scale · backoff, min(minimum, scale));  good_steps ← 0
        finite, before the interval:   good_steps ← good_steps + 1
        finite, at the interval:       scale ← scale · growth unless that exceeds maximum;  good_steps ← 0

    A static scale has `interval` 0 and never moves. Source: Micikevicius et al. 2018, section 3.2.
    """

    scale: float
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    minimum: float = 0.0
    maximum: float = float("inf")
    good_steps: int = 0

    @property
    def dynamic(self) -> bool:
        """True for a dynamic scale, False for a static one."""
        return self.interval > 0

    def adjust(self, finite: bool) -> LossScale:
        """The loss scale after an update whose gradients were finite or not."""
        if not self.dynamic:
            return self
        if not finite:
            lower = _float32(self.scale * _float32(self.backoff))
            return replace(self, scale=max(lower, min(self.minimum, self.scale)), good_steps=0)
        if self.good_steps + 1 < self.interval:
            return replace(self, good_steps=self.good_steps + 1)
        grown = _float32(self.scale * _float32(self.growth))
        return replace(self, scale=grown if grown <= self.maximum else self.scale, good_steps=0)

    def at(self, scale: float, good_steps: int) -> LossScale:
        """A loss scale with this rule and the given state."""
        return replace(self, scale=scale, good_steps=good_steps)


def loss_scale(scaling: Scaling | None, rule: ScalerRule) -> LossScale | None:
    """A recipe's initial scale under a framework's rule; None without scaling.

    Raises:
        ValueError: a setting is invalid.
    """
    match scaling:
        case DynamicScaling(enabled=True):
            result = LossScale(
                _float32(rule.initial if scaling.initial is None else scaling.initial),
                rule.growth if scaling.growth is None else scaling.growth,
                rule.backoff if scaling.backoff is None else scaling.backoff,
                rule.interval if scaling.interval is None else scaling.interval,
                rule.minimum,
                rule.maximum,
            )
            if result.growth < 1.0 or not 0.0 < result.backoff <= 1.0 or result.interval < 1:
                raise ValueError(f"growth >= 1, 0 < backoff <= 1 and interval >= 1 are needed, not {result}")
        case StaticScaling(scale=scale):
            result = LossScale(_float32(scale), 1.0, 1.0, 0)
        case _:
            return None
    if not 0.0 < result.scale < float("inf"):
        raise ValueError(f"a loss scale is positive and finite in float32, not {result.scale}")
    return result
