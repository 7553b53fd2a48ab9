"""PyTorch trained by accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, RowOrder, Unsupported
from frameworks.torch.stacks import accelerate_probes
from frameworks.torch.stacks.accelerate_run import AccelerateTrainer
from frameworks.torch.stacks.framework import StackFramework

BFLOAT16_SCALED = "accelerate's loss scaler comes with mixed_precision='fp16', and its bfloat16 has none"


class AccelerateFramework(StackFramework):
    """Every recipe is trained by the loop that accelerate documents, with one accelerator for each run."""

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION})

    def refused(self) -> Mapping[Capability, str]:
        return accelerate_probes.REFUSED

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return accelerate_probes.attempts(self.device)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> AccelerateTrainer:
        scaled = recipe.scaling is not None
        if scaled and recipe.precision.level == "O1" and recipe.precision.format == "bfloat16":
            attempt = partial(accelerate_probes.bfloat16_is_scaled, self.device)
            raise Unsupported(Capability.DYNAMIC_SCALING, BFLOAT16_SCALED, attempt)
        return AccelerateTrainer(model, recipe, weights, self.device, self.mode)

    def requested(self, format_name: FormatName) -> FormatRequest:
        return accelerate_probes.requested(format_name, self.device)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        return accelerate_probes.resumed_epoch(order, windows, self.device)
