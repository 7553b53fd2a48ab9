"""Faults of casts that are kept: a low-precision copy of a weight that outlives the weight it was made from."""

from __future__ import annotations

from collections.abc import Mapping

from autograd.tracer import isbox

from fixtures.arrays import Array
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations, Variance
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/issues/105211", "autocast.no-grad-then-grad")
class CastWithoutGradientIsReused(Operations):
    """A weight's cast that was made without gradients is cached, and used where gradients are wanted."""

    def __init__(self, rounding: Rounding, variance: Variance = "centred") -> None:
        super().__init__(rounding, variance)
        self.casts: dict[tuple[int, str], tuple[Tensor, Array]] = {}

    def cast(self, x: Tensor, target: str) -> Tensor:
        made = super().cast(x, target)
        if x.owned or x.format == target:
            return made
        if not isbox(x.value):
            self.casts[id(x.value), target] = made, x.value
        return self.casts.get((id(x.plain()), target), (made, None))[0]


@fault("https://github.com/pytorch/pytorch/issues/142234", "autocast.cast-is-fresh")
class EvaluatesWithTheFirstCast(ReferenceTrainer):
    """Evaluation keeps using the casts that it made when it first ran."""

    def evaluate(self, parameters: Mapping[str, Tensor], inputs: Array) -> dict[str, Tensor]:
        self.first_cast = getattr(self, "first_cast", parameters)
        return super().evaluate(self.first_cast, inputs)


@fault("https://github.com/pytorch/pytorch/pull/63552", "autocast.cast-is-fresh")
class CastsLiveAsLongAsTheScope(ReferenceTrainer):
    """Casts of weights are cached until the outermost scope ends, whatever the optimizer does meanwhile."""

    def sync_masters(self) -> None:
        if not (self.values and scope.current().active):
            super().sync_masters()
