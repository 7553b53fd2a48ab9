"""PyTorch's loss scaler for a recipe, and how it is brought to take the gradients of a float16 model."""

from __future__ import annotations

from typing import Any

import torch

from fixtures.recipe import SGD, DynamicScaling, Precision, Recipe, StaticScaling


def grad_scaler(device: str, recipe: Recipe) -> torch.amp.GradScaler | None:
    """PyTorch's scaler; what the recipe leaves None is left to PyTorch. A constant scale is put back by `update`."""
    match recipe.scaling:
        case None:
            return None
        case StaticScaling(scale=scale):
            return torch.amp.GradScaler(device, init_scale=scale)
        case DynamicScaling() as scaling:
            wanted = {
                "init_scale": scaling.initial,
                "growth_factor": scaling.growth,
                "backoff_factor": scaling.backoff,
                "growth_interval": scaling.interval,
            }
            given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
            return torch.amp.GradScaler(device, enabled=scaling.enabled, **given)


def constant_scale(recipe: Recipe) -> float | None:
    """What `GradScaler.update` is told to put back; None where the scale moves."""
    return float(recipe.scaling.scale) if isinstance(recipe.scaling, StaticScaling) else None


def scales_float16(recipe: Recipe) -> bool:
    """Whether the recipe scales the loss of a float16 model, whose gradients `GradScaler.unscale_` refuses."""
    scaled = isinstance(recipe.scaling, StaticScaling) or (recipe.scaling is not None and recipe.scaling.enabled)
    return scaled and recipe.precision == Precision("O3", "float16")


def has_gradient_formats() -> bool:
    """Whether the format of a parameter's gradient can be chosen, by `Tensor.grad_dtype`."""
    return hasattr(torch.Tensor, "grad_dtype")


def wants_float32_gradients(recipe: Recipe) -> bool:
    """Whether a float16 model's parameters are to get float32 gradients, which SGD takes and Adam does not."""
    return scales_float16(recipe) and isinstance(recipe.optimizer, SGD) and has_gradient_formats()


def wants_fused(recipe: Recipe) -> bool:
    """Whether the optimizer is to be a fused one, which unscales a float16 model's gradients by itself."""
    return scales_float16(recipe) and not wants_float32_gradients(recipe)
