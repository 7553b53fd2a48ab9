"""The dynamic loss scaler's automaton in closed form, as frameworks document it.

    on a non-finite update:  scale ← max(scale · backoff, min(minimum, scale));  good ← 0;  the update is skipped
    on a finite update:      good ← good + 1;  if good = interval: good ← 0 and scale ← scale · growth,
                             unless that is beyond the declared maximum

The scale is a float32 number. Source: Micikevicius et al. 2018, section 3.2, with the parameters that
torch.amp.GradScaler, Keras' LossScaleOptimizer and paddle.amp.GradScaler share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Scale:
    """The scaler's state between two updates, and its transition rule."""

    scale: float
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    minimum: float = 0.0
    maximum: float = float("inf")
    good: int = 0

    def after(self, finite: bool) -> Scale:
        """The state after a finite or a non-finite update."""
        with np.errstate(over="ignore", under="ignore"):
            if not finite:
                lower = float(np.float32(self.scale) * np.float32(self.backoff))
                return replace(self, scale=max(lower, min(self.minimum, self.scale)), good=0)
            if self.good + 1 < self.interval:
                return replace(self, good=self.good + 1)
            higher = float(np.float32(self.scale) * np.float32(self.growth))
        return replace(self, scale=self.scale if higher > self.maximum else higher, good=0)

    def trace(self, schedule: Iterable[bool]) -> Iterator[Scale]:
        """The states after each update of a schedule of finite (True) and non-finite (False) ones."""
        state = self
        for finite in schedule:
            state = state.after(finite)
            yield state
