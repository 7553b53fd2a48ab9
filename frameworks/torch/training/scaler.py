"""PyTorch's loss scaler for a recipe, also for gradients of a float16 model."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fixtures.arrays import Array
from fixtures.recipe import SGD, DynamicScaling, Precision, Recipe, StaticScaling
from frameworks.torch.core.arrays import dtype_name

Kind = type[torch.amp.GradScaler]


def class_of_device(device: str) -> Kind:
    """The device's own class of scalers, such as `torch.cuda.amp.GradScaler`, which is made without a device."""
    own: type[torch.amp.GradScaler] = getattr(torch, device).amp.GradScaler

    class OfDevice(own):
        """The class with the arguments of `torch.amp.GradScaler`."""

        def __init__(self, device: str, **given: Any) -> None:
            super().__init__(**given)

    return OfDevice


def grad_scaler(device: str, recipe: Recipe, kind: Kind = torch.amp.GradScaler) -> torch.amp.GradScaler | None:
    """PyTorch's scaler; what the recipe leaves None is left to PyTorch. A constant scale is restored by `update`."""
    match recipe.scaling:
        case None:
            return None
        case StaticScaling(scale=scale):
            return kind(device, init_scale=scale)
        case DynamicScaling() as scaling:
            return kind(device, **dynamic_arguments(scaling))


def dynamic_arguments(scaling: DynamicScaling) -> dict[str, Any]:
    """The arguments of PyTorch's scaler, without those that the recipe leaves None."""
    given = {
        "enabled": scaling.enabled,
        "init_scale": scaling.initial,
        "growth_factor": scaling.growth,
        "backoff_factor": scaling.backoff,
        "growth_interval": scaling.interval,
    }
    return {name: value for name, value in given.items() if value is not None}


def twin_of(scaler: torch.amp.GradScaler | None, device: str) -> torch.amp.GradScaler | None:
    """A copy of the scaler, which keeps the notes on unscaled optimizers to itself."""
    if scaler is None or not scaler.is_enabled():
        return scaler
    twin = type(scaler)(device)
    twin.load_state_dict(scaler.state_dict())
    return twin


def constant_scale(recipe: Recipe) -> float | None:
    """Argument of `GradScaler.update` that keeps the scale; None if it moves."""
    return float(recipe.scaling.scale) if isinstance(recipe.scaling, StaticScaling) else None


def scales_float16(recipe: Recipe, kind: Kind = torch.amp.GradScaler) -> bool:
    """Whether the recipe scales the loss of a float16 model, whose gradients `GradScaler.unscale_` refuses.

    Another kind of scaler takes them.
    """
    if kind is not torch.amp.GradScaler:
        return False
    scaled = isinstance(recipe.scaling, StaticScaling) or (recipe.scaling is not None and recipe.scaling.enabled)
    return scaled and recipe.precision == Precision("O3", "float16")


def has_gradient_formats() -> bool:
    """Whether the format of a parameter's gradient can be set, by `Tensor.grad_dtype`."""
    return hasattr(torch.Tensor, "grad_dtype")


def wants_float32_gradients(recipe: Recipe, kind: Kind = torch.amp.GradScaler) -> bool:
    """Whether a float16 model's parameters are to get float32 gradients, which unfused SGD takes and Adam does not."""
    takes = isinstance(recipe.optimizer, SGD) and recipe.implementation != "fused"
    return takes and scales_float16(recipe, kind) and has_gradient_formats()


def take_float32_gradients(recipe: Recipe, kind: Kind, parameters: Iterable[torch.Tensor]) -> None:
    """Gives a float16 model's parameters float32 gradients if `wants_float32_gradients`."""
    for parameter in parameters if wants_float32_gradients(recipe, kind) else ():
        if parameter.dtype == torch.float16:
            parameter.grad_dtype = torch.float32


def wants_fused(recipe: Recipe, kind: Kind = torch.amp.GradScaler) -> bool:
    """Whether the optimizer is to be a fused one, which unscales a float16 model's gradients by itself."""
    return scales_float16(recipe, kind) and not wants_float32_gradients(recipe, kind)


def scaler_state(scaler: torch.amp.GradScaler | None, device: str) -> dict[str, Array]:
    """Scale and growth counter, the scale in the format that the scaler multiplies float16 losses in; else nothing."""
    good = good_updates(scaler)
    if scaler is None or good is None:
        return {}
    dtype = scaler.scale(torch.ones((), dtype=torch.float16, device=device)).dtype
    return {"scale": np.array(scaler.get_scale(), dtype_name(dtype)), "good_steps": np.array(good, np.int64)}


def good_updates(scaler: torch.amp.GradScaler | None) -> int | None:
    """Its growth counter: updates without an overflow since the scale moved; None without an enabled scaler."""
    return None if scaler is None or not scaler.is_enabled() else int(scaler.state_dict()["_growth_tracker"])


def scaler_settings(scaler: torch.amp.GradScaler | None) -> dict[str, float]:
    """Its settings, as reported by PyTorch; empty without an enabled scaler."""
    if scaler is None or not scaler.is_enabled():
        return {}
    return {
        "initial": scaler.get_scale(),
        "growth": scaler.get_growth_factor(),
        "backoff": scaler.get_backoff_factor(),
        "interval": float(scaler.get_growth_interval()),
    }


def divided(value: Array, scale: float) -> Array:
    """A gradient as a fused optimizer unscales it, in float32 or wider."""
    return np.asarray(value.astype(np.promote_types(value.dtype, np.float32)) / scale)


def no_clipping() -> str:
    """Why scaled gradients of a float16 model cannot be clipped under an optimizer that has to unscale them itself."""
    return f"clipping wants unscaled gradients; GradScaler.unscale_ refuses a float16 model's float16 ones, {_others()}"


def no_unscaling() -> str:
    """Why scaled gradients of a float16 model cannot be unscaled by hand under such an optimizer."""
    return f"GradScaler.unscale_ refuses a float16 model's float16 gradients, {_others()}"


def _others() -> str:
    return f"and {'Adam takes no others' if has_gradient_formats() else 'this version of PyTorch gives it no others'}"
