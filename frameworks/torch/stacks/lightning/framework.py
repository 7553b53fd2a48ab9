"""Lightning's Trainer as a framework of the suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from lightning.pytorch import callbacks

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, RowOrder, Unsupported
from frameworks.torch.stacks.framework import StackFramework
from frameworks.torch.stacks.lightning.data import resumed_epoch, trainer_requested
from frameworks.torch.stacks.lightning.fabric import (
    NO_FUSED_CLIPPING,
    NO_STATIC_SCALE,
    clips_fused_and_scaled,
    require_together,
)
from frameworks.torch.stacks.lightning.loops import clip_in_manual_step, gradient_in_hook, scheduled
from frameworks.torch.stacks.lightning.probes import clips_fused, keeps_float64_head, library_attempts, trainer_scales
from frameworks.torch.stacks.lightning.trainer import LightningTrainer

_BEFORE_2_6 = "EMAWeightAveraging came with Lightning 2.6.0"
_BY_ITSELF = "Trainer unscales gradients itself, after the last backward pass of a window"


class LightningFramework(StackFramework):
    """Lightning's Trainer with automatic optimization: one fit for each run."""

    of_library = frozenset(
        {
            Capability.LIBRARY_REQUESTS,
            Capability.DATA_POSITION,
            Capability.SCHEDULE_FREQUENCY,
            Capability.STEP_HOOK,
            Capability.MANUAL_STEP,
        }
    )

    def refused(self) -> Mapping[Capability, str]:
        averages = {} if hasattr(callbacks, "EMAWeightAveraging") else {Capability.AVERAGE: _BEFORE_2_6}
        return averages | {
            Capability.STATIC_SCALING: NO_STATIC_SCALE,
            Capability.EXPLICIT_UNSCALE: _BY_ITSELF,
            Capability.SECOND_UNSCALE: _BY_ITSELF,
            Capability.TWO_OPTIMIZERS: "automatic optimization has one optimizer",
            Capability.TWO_LOSSES: "automatic optimization goes backward through one loss, that of training_step",
        }

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return library_attempts(self.device)

    def requested(self, format_name: FormatName) -> FormatRequest:
        return trainer_requested(format_name, self.device)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        return resumed_epoch(order, windows, self.device)

    def scheduled(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        return scheduled(self.device, frequency=frequency, accumulation=accumulation, epochs=epochs)

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        return clip_in_manual_step(self.device, gradient, limit=limit, scale=scale)

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        return gradient_in_hook(self.device, gradient, scale=scale, fused=fused)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> LightningTrainer:
        require_together(model, recipe, keeps_float64_head, trainer_scales, self.device)
        if clips_fused_and_scaled(recipe):
            raise Unsupported(Capability.CLIP, NO_FUSED_CLIPPING, partial(clips_fused, self.device))
        return LightningTrainer(model, recipe, weights, self.device, self.mode)
