"""Faults in optimizers that the reference ships, each through one of their techniques."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fixtures.arrays import Array
from frameworks.reference.shipped.optimizers import ReferenceOptimizers
from frameworks.reference.training.optimizers import Arithmetic, Slots, UpdateRule
from tools.faults import fault


class _EpsilonIsRounded(Arithmetic):
    def epsilon(self, value: float) -> float:
        return float(self.rounding.round(np.array(value), self.format))


@fault("https://github.com/google-deepmind/optax/issues/1784", "optimizer.shipped")
class EpsilonIsLostInFloat16(ReferenceOptimizers):
    """Default epsilons are 0 in float16, where a gradient of zero gives 0/0."""

    def arithmetic(self, format_name: str) -> Arithmetic:
        return _EpsilonIsRounded(self.rounding, format_name)


@fault("https://github.com/PaddlePaddle/Paddle/pull/63549", "optimizer.shipped")
class LoadedMomentsAreZero(ReferenceOptimizers):
    """A loaded optimizer knows how many updates were made, and begins with moments of zero."""

    def loaded(self, states: Sequence[Slots], count: int) -> tuple[list[Slots], int]:
        return [{slot: np.zeros_like(value) for slot, value in each.items()} for each in states], count


@fault("https://github.com/PaddlePaddle/Paddle/pull/34075", "optimizer.shipped")
class ScalerStepsOnAnOverflow(ReferenceOptimizers):
    """An update that overflowed is applied."""

    def skips(self, update: Sequence[Array]) -> bool:
        return False


@fault("https://github.com/LiyuanLucasLiu/RAdam/issues/24", "optimizer.shipped")
class StateBelongsToAPlaceInTheList(ReferenceOptimizers):
    """Parameters in another order get each other's gradients where their shapes agree, and nothing elsewhere."""

    def updated(
        self,
        rule: UpdateRule,
        weights: Sequence[Array],
        states: Sequence[Slots],
        update: Sequence[Array],
        count: int,
        technique: str,
    ) -> tuple[list[Array], list[Slots]]:
        if technique == "reordered":
            update = [each if each.ndim == 1 else np.zeros_like(each) for each in update]
        return super().updated(rule, weights, states, update, count, technique)
