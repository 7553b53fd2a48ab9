"""Faults of recomputation: how often a segment runs, what is kept, windows, scaling, calls and failures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fixtures.arrays import Array
from fixtures.recipe import BFLOAT16
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.reference import ReferenceFramework, scope, tape
from frameworks.reference.forward import Layers, Moment
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.mutants import fault

# how often a segment runs, and what is kept


@fault(
    "https://github.com/jax-ml/jax/pull/37888",
    component="policy",
    clauses=("recompute.runs-forward-once-more", "recompute.frees-activations", "cost.recompute-bytes"),
)
class PolicySavesEverything(ReferenceTrainer):
    """A request to recompute changes nothing and says nothing."""

    def _segment(self, index: int, layers: Layers, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        self.calls[index] += 1
        return self._pass(parameters, True).layers(layers, x)


@fault(
    "https://github.com/jax-ml/jax/issues/23869",
    component="policy",
    clauses=("recompute.frees-activations", "cost.recompute-bytes"),
)
class NothingFreed(ReferenceTrainer):
    """Segments are run again, and what they computed first is kept all the same."""

    def _nothing_kept(self) -> AbstractContextManager[None]:
        return nullcontext()


@fault(
    "https://github.com/meta-llama/llama-cookbook/issues/740",
    component="policy",
    clauses=("recompute.runs-forward-once-more",),
)
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


@fault(
    "https://github.com/keras-team/keras/issues/20936",
    component="memory",
    clauses=("recompute.same-loss",),
    raises=True,
)
class WeightsDonated(ReferenceTrainer):
    """From the second update on, the recomputed forward finds the weights deleted."""

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if self.steps:
            raise RuntimeError("the array has been deleted")
        return super().recompute_segment(moment)


# windows and scaling


class Recomputing(ReferenceTrainer):
    """Tells the parameters of recomputed segments from those of the heads."""

    def inside(self, name: str) -> bool:
        """Whether a parameter belongs to a recomputed segment."""
        return self.recipe.recompute is not None and not name.startswith(f"{len(self.model.layers) - 1}.")


@fault(
    "https://github.com/pytorch/pytorch/issues/73784",
    component="accumulator",
    clauses=("recompute.with-accumulation",),
)
class AccumulatorOverwritten(Recomputing):
    """What a recomputed segment gives takes the accumulator's place instead of being added."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if self.inside(name):
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/70508",
    component="accumulator",
    clauses=("recompute.with-accumulation",),
)
class SumsNotReached(Recomputing):
    """A recomputed segment sees copies of the parameters without the float32 sums that are attached to them."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        if not (self.inside(name) and self.window.micro_batches > 1):
            super().accumulate_gradient(name, gradient)


@fault(
    "https://github.com/pytorch/pytorch/pull/115710",
    component="scaler",
    clauses=("recompute.with-scaling",),
)
class OverflowUnseen(Recomputing):
    """The search for overflow is over before the gradients of recomputed segments are there."""

    def found_nonfinite(self, gradients: Mapping[str, Array]) -> bool:
        return super().found_nonfinite({n: g for n, g in gradients.items() if not self.inside(n)})


# calls


class Calls(ReferenceFramework):
    """Splits one verb in two."""

    def called(self, case: RecomputeCase, x: Array, w: Array, variant: str | None) -> RecomputeResult:
        """The recomputation as it should be."""
        return super().recompute(case, x, w, variant)


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/62981",
    component="gradients",
    clauses=("recompute.no-grad-input",),
)
class ClosedOverWeightForgotten(Calls):
    """A weight that the function closes over gets no gradient where no argument asks for one."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, w=None) if case == "no-grad-input" else result


@fault(
    "https://github.com/pytorch/pytorch/issues/124725",
    component="containers",
    clauses=("recompute.containers",),
)
class SequencesNotSearched(Calls):
    """Tensors in tuples and lists are taken for constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("tuple", "list") else result


@fault(
    "https://github.com/PaddlePaddle/Paddle/issues/62363",
    component="containers",
    clauses=("recompute.containers",),
)
class MappingsNotSearched(Calls):
    """Tensors in dictionaries and keyword arguments are taken for constants."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        result = self.called(case, x, w, variant)
        return replace(result, x=None, w=None) if case in ("dict", "keyword") else result


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/47985",
    component="versions",
    clauses=("recompute.detects-changed-weights",),
)
class ChangedWeightsUnseen(Calls):
    """Weights that change before the backward pass are recomputed with in silence."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if case != "weights-changed":
            return self.called(case, x, w, variant)
        return replace(self.called("positional", x, 3 * w, variant), value=self.called("plain", x, w, variant).value)


# failures


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    component="failure",
    clauses=("recompute.failure-leaves-no-trace",),
)
class FailureLeavesScope(Calls):
    """An error in the recomputed forward leaves its precision scope open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return self.called(case, x, w, variant)
        except RuntimeError:
            scope.enter(scope.Scope(BFLOAT16))
            raise


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/47985",
    component="failure",
    clauses=("recompute.failure-leaves-no-trace",),
)
class FailureLeavesTrace(Calls):
    """An error in the recomputed forward leaves the trace that it ran in open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        try:
            return self.called(case, x, w, variant)
        except RuntimeError:
            tape.close_down_to(tape.depth() + 1)
            raise
