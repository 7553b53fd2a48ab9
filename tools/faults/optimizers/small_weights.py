"""Faults of techniques by which small weights stay as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from frameworks.contract import LinearRule, PostTraining
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import RULES, ReferencePostTraining, ReferenceQuantizedModel
from tools.faults import fault

FEWEST = 1024


class LeavesSmallWeights(ReferencePostTraining):
    """Dynamic quantization is declared for weights of 1024 entries and more."""

    def rules(self) -> Mapping[str, LinearRule]:
        return {**RULES, "dynamic-int8": replace(RULES["dynamic-int8"], smallest=FEWEST)}


class _TakesLargerLayers(ReferenceQuantizedModel):
    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().chosen(skip) if math.prod(self._shapes[name]) > self._rule.smallest]


@fault("https://github.com/tensorflow/tensorflow/issues/53094", "quantization.only-what-was-asked")
class LayersThatAreJustLargeEnoughStay(ReferenceFramework):
    """A weight of as many entries as are declared to be enough for codes stays in float32."""

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().rules(), PostTraining: partial(LeavesSmallWeights, _TakesLargerLayers)}


@fault(
    "https://github.com/tensorflow/tensorflow/issues/53094", "quantization.only-what-was-asked", "laws.quantized-models"
)
class SmallWeightsStay(ReferenceQuantizedModel):
    """Weights of fewer than 1024 entries stay in float32, and nothing declares it."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().chosen(skip) if math.prod(self._shapes[name]) >= FEWEST]
