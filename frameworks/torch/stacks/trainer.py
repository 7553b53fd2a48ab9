"""PyTorch trained by transformers.Trainer."""

from __future__ import annotations

from collections.abc import Mapping

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, LoadedRun, RowOrder
from frameworks.torch.stacks import trainer_data, trainer_loaded, trainer_probes
from frameworks.torch.stacks.framework import StackFramework
from frameworks.torch.stacks.trainer_parts import PlainTrainer
from frameworks.torch.stacks.trainer_run import TransformersRun
from frameworks.torch.training.trainer import TorchTrainer


class TransformersFramework(StackFramework):
    """Every recipe is trained by one Trainer, whose defaults hold for what the recipe does not fix.

    Mode "trainer" has Trainer's default implementation of AdamW, the fused one; "trainer-plain" has "adamw_torch". A
    recipe without clipping is `max_grad_norm=0`, and one without a schedule a constant rate.
    """

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION, Capability.LOADED_CHECKPOINT})

    def refused(self) -> Mapping[Capability, str]:
        return trainer_probes.REFUSED

    @property
    def takes_any_optimizer(self) -> bool:
        """True in one of the two modes: `TrainingArguments.optim` has no effect on an optimizer from outside."""
        return self.mode == "trainer"

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return trainer_probes.attempts(self.device)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> TransformersRun:
        trainer_probes.require_scaling(recipe, self.device)
        return TransformersRun(model, recipe, weights, self.device, self.mode)

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        return self.bound(PlainTrainer(model, recipe, weights, self.device, self.mode))

    def requested(self, format_name: FormatName) -> FormatRequest:
        return trainer_data.requested(format_name, self.device)

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        return trainer_loaded.trained(saved, updates, rate, self.device)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        return trainer_data.resumed_epoch(order, windows, self.device)
