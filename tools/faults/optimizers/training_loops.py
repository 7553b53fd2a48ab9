"""Faults of the training loop around an update: when a schedule steps, and what a hook finds."""

from __future__ import annotations

from fixtures.arrays import Array
from fixtures.recipe import FormatName, Precision
from frameworks.reference.training.loop import ReferenceLoop
from tools.faults import fault


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/17544", "accumulation.schedule-frequency")
class FrequencyCountsTheEpochsMicroBatches(ReferenceLoop):
    """A schedule's frequency counts the micro-batches of the epoch."""

    def is_due(self, frequency: int, updates: int, seen: int, place: int) -> bool:
        return place % frequency == 0


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/1476", "accumulation.schedule-frequency")
class FrequencyCountsMicroBatches(ReferenceLoop):
    """A schedule's frequency counts the micro-batches of the run."""

    def is_due(self, frequency: int, updates: int, seen: int, place: int) -> bool:
        return seen % frequency == 0


@fault("https://github.com/Lightning-AI/pytorch-lightning/issues/9330", "scaling.hooks-see-unscaled")
class HookFindsScaledGradients(ReferenceLoop):
    """The hook before the optimizer step finds gradients multiplied by the loss scale."""

    def hook_gradient(self, unscaled: Array, scale: float) -> Array:
        return unscaled * scale


@fault("https://github.com/huggingface/sentence-transformers/pull/3773", "master.loaded-weights-move")
class LoadedWeightsStayLow(ReferenceLoop):
    """A checkpoint in a low format is trained in it, without float32 weights."""

    def precision(self, saved: FormatName) -> Precision:
        return super().precision(saved) if saved == "float32" else Precision("O3", saved)
