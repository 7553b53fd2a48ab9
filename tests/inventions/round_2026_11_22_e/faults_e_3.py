"""Faults of state: checkpoints, random streams, running statistics, and what several runs of a process share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.contract import Conventions, Update
from frameworks.reference import checkpoint, scope
from frameworks.reference.arithmetic import Operations
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("https://github.com/deepspeedai/DeepSpeed/pull/7786", clause="resume.bit-identical", kind="real")
class BfloatLoadsNoMoments(ReferenceTrainer):
    """With a bfloat16 model and float32 masters, a load leaves the moments and their counters at zero."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        super().load_state(arrays)
        if self.recipe.precision.label == "O2-bfloat16":
            self.slots = {slot: {n: np.zeros_like(v) for n, v in held.items()} for slot, held in self.slots.items()}
            self.counts = dict.fromkeys(self.counts, 0)


@fault("https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/3267", clause="resume.bit-identical", kind="real")
class SaveNotesLaterCounters(ReferenceTrainer):
    """A checkpoint is completed after the next update, with the step and schedule counters as they are by then."""

    pending: tuple[Path, dict[str, Array]] | None = None

    def save(self, path: Path) -> None:
        super().save(path)
        self.pending = (path, self.save_state())

    def apply(self) -> Update:
        update = super().apply()
        if self.pending is not None:
            path, arrays = self.pending
            self.pending = None
            if path.exists():
                later = np.concatenate([self.save_state()["counters"][:2], arrays["counters"][2:]])
                checkpoint.write(path, {**arrays, "counters": later}, self._identity())
        return update


@fault("https://github.com/keras-team/keras/pull/4338", clause="resume.bit-identical", kind="real")
class MomentsByNameOrder(ReferenceTrainer):
    """Moments are written in the alphabetical order of their layers, "10" before "2", and read in the model's order.

    With more than ten layers, those of equal shape get one another's moments back.
    """

    def load_state(self, arrays: dict[str, Array]) -> None:
        arrays = dict(arrays)
        for slot, held in self.slots.items():
            saved = {name: arrays[f"slot.{slot}/{name}"] for name in held}
            for shape in {value.shape for value in held.values()}:
                names = [name for name in held if held[name].shape == shape]
                written = sorted(names, key=lambda name: name.split(".")[0])
                arrays |= {f"slot.{slot}/{n}": saved[other] for n, other in zip(names, written, strict=True)}
        super().load_state(arrays)


@fault("https://github.com/meta-pytorch/botorch/issues/1471", clause="resume.restored-is-complete", kind="real")
class LoadKeepsCachedWeights(ReferenceTrainer):
    """Evaluation keeps its copies of the weights until the next update; a load does not drop them."""

    cached: dict[str, Tensor] | None = None

    def predict(self, inputs: Array) -> dict[str, Array]:
        if self.cached is None:
            self.cached = self._tensors()
        return self._evaluated(self.cached, inputs)

    def apply(self) -> Update:
        update = super().apply()
        self.cached = None
        return update


@fault("https://github.com/pytorch/pytorch/issues/198333", clause="recompute.replays-dropout", kind="real")
class ReplayRepeatsMasks(ReferenceTrainer):
    """In a recomputed pass over values with more than two axes, each four neighbours share one draw of dropout."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        mask = super().draw_mask(shape, rate)
        if self._replaying and len(shape) > 2:
            return np.repeat(mask[..., ::4], 4, axis=-1)[..., : shape[-1]]
        return mask


@fault("https://github.com/tensorflow/tensorflow/pull/30230", clause="autocast.norm-layers-are-wide", kind="real")
class HalfCountInStatistics(ReferenceTrainer):
    """With float16, the running variance is corrected by a ratio of counts that is computed in float16.

    From 65520 values a channel on, the ratio and with it the running variance are NaN.
    """

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        if self.recipe.precision.format == "float16":
            with np.errstate(over="ignore", invalid="ignore"):
                variance = variance * float(np.float16(count) / np.float16(count))
        super().update_running_statistics(path, mean, variance, count, momentum)


@fault("", clause="resume.restored-is-complete", kind="invented")
class LoadKeepsOpenWindow(ReferenceTrainer):
    """Loading a checkpoint without an open window leaves in the accumulator what the run had gathered in its own."""

    def load_state(self, arrays: dict[str, Array]) -> None:
        former = self.window.gradients
        super().load_state(arrays)
        if not self.window.micro_batches:
            self.window.gradients = dict(former)


@fault("", clause="resume.random-state", kind="invented")
class RunsShareOneStream(ReferenceTrainer):
    """Dropout draws from one stream of the whole process: a run takes it up where the runs before it left it."""

    drawn: ClassVar[list[int]] = [0]

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        self.start = self.drawn[0]

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        own = self.draws
        self.draws = own + self.start
        mask = super().draw_mask(shape, rate)
        self.draws = own + 1
        self.drawn[0] = max(self.drawn[0], self.start + self.draws)
        return mask


@fault("", clause="autocast.evaluation-parity", kind="invented")
class RunsShareStatistics(ReferenceTrainer):
    """Runs of one model in one process write their running statistics into the same arrays."""

    known: ClassVar[dict[Any, dict[str, Array]]] = {}

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        conventions: Conventions,
        ops: Operations,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(model, recipe, conventions, ops, weights)
        key = model.name, tuple(model.buffer_shapes().items())
        self.statistics = self.known.setdefault(key, self.statistics)


@fault("", clause="autocast.settings-restored", kind="invented")
class ErrorLeavesScopeOpen(ReferenceTrainer):
    """A micro-batch that raises in its forward pass leaves the run's precision scope open for the whole process."""

    def accumulate(self, batch: Batch, items: int) -> float:
        try:
            return super().accumulate(batch, items)
        except Exception:
            scope.enter(self.scope)
            raise
