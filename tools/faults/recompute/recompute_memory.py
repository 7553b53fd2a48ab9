"""Faults of what recomputation is for: how often a segment runs, and which values are kept."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from frameworks.reference.core import scope, tape
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.forward import Layers, Moment
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/meta-llama/llama-cookbook/issues/740", "recompute.runs-forward-once-more")
class WrappedTwice(ReferenceTrainer):
    """Two libraries wrap the same segment, so that its forward runs twice more."""

    def _segment(self, index: int, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        if self.recipe.recompute is None:
            return super()._segment(index, layers, parameters, x)
        moment, formats = Moment(self.draws, scope.current()), []

        def wrapped(value: Any, values: Mapping[str, Any]) -> Any:
            given = {n: Tensor(v, parameters[n].format, owned=False) for n, v in values.items()}
            y = ReferenceTrainer._segment(self, index, layers, given, Tensor(value, x.format, x.owned))
            formats.append(y.format)
            return y.value

        values = {name: p.value for name, p in parameters.items()}
        result = tape.recomputed(wrapped, x.value, values, replay=lambda: self.recompute_segment(moment))
        return Tensor(result, formats[0])


@fault("https://github.com/keras-team/keras/issues/20936", "recompute.same-loss", raises=True)
class WeightsDonated(ReferenceTrainer):
    """From the second update on, the recomputed forward finds the weights deleted."""

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if self.steps:
            raise RuntimeError("the array has been deleted")
        return super().recompute_segment(moment)
