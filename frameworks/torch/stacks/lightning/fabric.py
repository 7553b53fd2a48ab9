"""Lightning Fabric as a framework of the suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, FormatName, Recipe
from frameworks.contract import Attempt, Capability, FormatRequest, Unsupported
from frameworks.torch.stacks.framework import StackFramework
from frameworks.torch.stacks.lightning.data import fabric_requested
from frameworks.torch.stacks.lightning.fabric_probes import (
    clips_fused,
    clips_two_optimizers,
    fabric_attempts,
    keeps_float64,
    scales,
)
from frameworks.torch.stacks.lightning.fabric_trainer import FabricTrainer
from frameworks.torch.stacks.lightning.start import NAMES

NO_STATIC_SCALE = "Lightning calls GradScaler.update() without a scale, so an overflow always changes it"
_NORM_OF_ONE = "clip_gradients takes the norm over the parameters of one optimizer"
NO_WIDE_HEADS = "Lightning casts the whole model, or all of its outputs, to one format"
NO_LOW_SCALING = "Lightning scales losses in its 16-mixed alone"
NO_FUSED_CLIPPING = "Lightning refuses to clip the scaled gradients of a fused optimizer, which unscales them itself"


def require_together(
    model: Model, recipe: Recipe, keeps: Callable[[str, str], bool], scales: Callable[[str, str], bool], device: str
) -> None:
    """Refuses a combination whose parts Lightning supports only separately.

    Args:
        keeps: whether float64 heads keep their format at a level, by its label.
        scales: whether a precision of Lightning has a loss scaler.

    Raises:
        Unsupported: float64 heads in a low model, or a scaler without float16 autocast.
    """
    label = recipe.precision.label
    has_wide_heads = any(head.format == "float64" for head in model.heads.heads)
    if has_wide_heads and label != "O0" and not keeps(label, device):
        raise Unsupported(Capability.FLOAT64_HEADS, NO_WIDE_HEADS, partial(keeps, label, device))
    if isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled and label not in ("O0", "O1-float16"):
        raise Unsupported(Capability.DYNAMIC_SCALING, NO_LOW_SCALING, partial(scales, NAMES[label], device))


def clips_fused_and_scaled(recipe: Recipe) -> bool:
    """Whether a recipe clips gradients that its scaler leaves to a fused optimizer."""
    scaled = recipe.scaling is not None or recipe.precision.label == "O1-float16"
    return recipe.clip is not None and recipe.implementation == "fused" and scaled


class FabricFramework(StackFramework):
    """Lightning Fabric: the user's own loop with Fabric's calls in it."""

    of_library = frozenset({Capability.LIBRARY_REQUESTS})

    def refused(self) -> Mapping[Capability, str]:
        return {Capability.STATIC_SCALING: NO_STATIC_SCALE}

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return fabric_attempts(self.device)

    def requested(self, format_name: FormatName) -> FormatRequest:
        return fabric_requested(format_name, self.device)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> FabricTrainer:
        require_together(model, recipe, keeps_float64, scales, self.device)
        if recipe.clip is not None and recipe.optimizers > 1:
            raise Unsupported(Capability.CLIP, _NORM_OF_ONE, partial(clips_two_optimizers, self.device))
        if clips_fused_and_scaled(recipe):
            raise Unsupported(Capability.CLIP, NO_FUSED_CLIPPING, partial(clips_fused, self.device))
        return FabricTrainer(model, recipe, weights, self.device, self.mode)
