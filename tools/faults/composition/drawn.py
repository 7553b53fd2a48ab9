"""Faults that drawn programs show: what is remembered for too long, and shapes and moments that nobody wrote down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Precision, Recipe
from frameworks.contract import RecomputeCase, RecomputeResult, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.forward import Moment
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/huggingface/accelerate/issues/2828", "laws.programs")
class SkipIsReportedForGood(ReferenceTrainer):
    """Once an update was skipped, every later one of a window of several micro-batches is reported as skipped too."""

    _skipped = False

    def apply(self) -> Update:
        several = self.window.micro_batches > 1
        update = super().apply()
        self._skipped = update.skipped or (several and self._skipped)
        return replace(update, skipped=self._skipped)


@fault("https://github.com/allenai/OLMo-core/pull/828", "laws.recomputation")
class MasksOfTheFirstMicroBatch(ReferenceTrainer):
    """The random stream is noted once a window: in later micro-batches the first one's masks are drawn again."""

    _first: int | None = None
    _begun = 0

    def accumulate(self, batch: Batch, items: int) -> float:
        self._begun = self.draws
        if self._first is None or not self.window.micro_batches:
            self._first = self.draws
        return super().accumulate(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        first = self._begun if self._first is None else self._first
        return super().recompute_segment(replace(moment, draws=moment.draws - self._begun + first))


@fault("https://github.com/tensorflow/tensorflow/pull/55310", "laws.scales")
class ReciprocalIsHeldLow(ReferenceTrainer):
    """Unscaling multiplies by the reciprocal of the scale, held in float16 without subnormals: zero from 2^15 on."""

    def unscale(self, name: str, gradient: Array) -> Array:
        assert self.scaler is not None
        reciprocal = 1.0 / self.scaler.scale
        return self.rounding.round(
            gradient * (reciprocal if reciprocal >= 2.0**-14 else 0.0), self.accumulator_format(name)
        )


@fault("https://github.com/m2lines/Samudra/pull/313", "laws.restores")
class AverageIsOfTheReceiver(ReferenceTrainer):
    """A load leaves the average of the run that it goes into where it was."""

    def load_state(self, arrays: Arrays) -> None:
        before = dict(self.averages)
        super().load_state(arrays)
        self.averages = before


@fault("https://github.com/ClickHouse/ClickHouse/issues/98637", "laws.programs")
class LoadedZerosArePositive(ReferenceTrainer):
    """A checkpoint leaves zeros out and puts them in again without their sign."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state({name: value + 0.0 if value.dtype.kind == "f" else value for name, value in arrays.items()})


@fault("https://github.com/mala-project/mala/issues/374", "laws.second-run")
class EveryRunScalesTheRate(ReferenceTrainer):
    """What a run does to the learning rate when it begins stays for the next one of the process."""

    _runs: ClassVar[list[int]] = []

    def learning_rate(self) -> float:
        if self.steps == 0 and id(self) not in self._runs:
            self._runs.append(id(self))
        return super().learning_rate() * (1.0 + 2.0**-6 * self._runs.index(id(self)) if id(self) in self._runs else 1.0)


@fault("https://github.com/ml-explore/mlx-lm/pull/1413", "laws.windows")
class ItemsCountedInWholeBatches(ReferenceTrainer):
    """A micro-batch weighs as much as the first one of its window, however many items it holds."""

    _first = 1

    def accumulate(self, batch: Batch, items: int) -> float:
        if not self.window.micro_batches:
            self._first = max(1, batch.items)
        return super().accumulate(batch, items)

    def normalise(self, loss: Tensor, batch_items: int, window_items: int) -> Tensor:
        made = super().normalise(loss, batch_items, window_items)
        return Tensor(made.value * self._first / max(1, batch_items), made.format)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/7883", "laws.operations")
class ListsOfTheOuterScopeStay(ReferenceFramework):
    """A scope adds its user lists to those of the scope around it, where they are to take their place."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return self._added(precision, frozenset(wide), frozenset(low)) if enabled else scope.opened(scope.Scope())

    @contextmanager
    def _added(self, precision: Precision, wide: frozenset[str], low: frozenset[str]) -> Iterator[None]:
        around = scope.current()
        with scope.opened(scope.Scope(precision, wide | around.wide, low | around.low)):
            yield


@fault("https://github.com/pytorch/pytorch/issues/37874", "laws.calls")
class RefusesAfterAFailure(ReferenceFramework):
    """The mark of a recomputation that is under way stays when it fails, and every later one is refused."""

    under_way = False

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        if type(self).under_way:
            raise RuntimeError("a recomputation is under way already")
        type(self).under_way = True
        result = super().recompute(case, x, w, variant)
        type(self).under_way = False
        return result


@fault("https://github.com/pytorch/pytorch/pull/14253", "laws.processes")
class StreamOfTheProcess(ReferenceTrainer):
    """A run's random stream begins where the last mask of the process left off."""

    _process: ClassVar[list[int]] = [0]

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        if self.draws == 0:
            self.draws = self._process[0]
        mask = super().draw_mask(shape, rate)
        self._process[0] = self.draws
        return mask


@fault("https://github.com/jax-ml/jax/issues/37830", "laws.programs")
class GivenWeightsAreNotCopied(ReferenceTrainer):
    """Until its first update a run reads the weights that it was made with where the caller has them."""

    def __init__(self, model: Model, recipe: Recipe, *given: Any) -> None:
        super().__init__(model, recipe, *given)
        self._given: Mapping[str, Array] | None = given[-1]

    def accumulate(self, batch: Batch, items: int) -> float:
        for name, value in (self._given or {}).items() if self.steps == 0 else ():
            self.values[name] = self.rounding.round(value.astype(np.float64), self.formats[name])
        return super().accumulate(batch, items)

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._given = None


@fault("https://github.com/WenjieDu/PyPOTS/issues/667", "laws.programs")
class OutputsAreReused(ReferenceTrainer):
    """An evaluation writes its outputs over those that an earlier one of as many samples returned."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._returned: dict[tuple[str, int], Array] = {}

    def predict(self, inputs: Array) -> Arrays:
        outputs = super().predict(inputs)
        for name, value in outputs.items():
            self._returned.setdefault((name, len(inputs)), value)[...] = value
        return {name: self._returned[name, len(inputs)] for name in outputs}


@primitive
def _dropped(x: Array, mask: Array, rate: float) -> Array:
    return np.where(mask, x / (1.0 - rate), 0.0)


def _by_blocks(_ans: Array, _x: Array, mask: Array, rate: float) -> Callable[[Array], Array]:
    flat = mask.reshape(-1).copy()
    rest = flat.size % 4
    if 0 < rest < flat.size:
        flat[-rest:] = flat[:rest]
    return lambda gradient: np.where(flat.reshape(mask.shape), gradient / (1.0 - rate), 0.0)


defvjp(_dropped, _by_blocks, None, None)


@fault("https://github.com/PaddlePaddle/Paddle/pull/29813", "laws.masks")
class BackwardMaskGoesByFours(Operations):
    """The backward pass reads the mask in blocks of four, and for what is left over at the end reads its beginning."""

    def dropout(self, x: Tensor, mask: Array, rate: float) -> Tensor:
        return self.apply("dropout", lambda a, _: _dropped(a, mask, rate), x)


@fault("https://github.com/rwth-i6/returnn/issues/366", "laws.masks")
class SamplesShareAMask(ReferenceTrainer):
    """The mask of a micro-batch's first sample is broadcast over the others."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        return np.broadcast_to(mask[:1], shape)
