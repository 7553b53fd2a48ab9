"""JMP's loss scales: which one a recipe asks for, what it was made with, and what it holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jmp
import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling, Scaling, StaticScaling
from frameworks.contract import Capability, Unsupported

INITIAL = 2.0**15
"""JMP has no default; its documentation begins with this."""


def loss_scale(scaling: Scaling | None, device: jax.Device) -> jmp.LossScale:
    """JMP's loss scale; what the recipe leaves None is left to JMP.

    Raises:
        Unsupported: growth and backoff are not one whole factor and its reciprocal.
    """
    match scaling:
        case DynamicScaling(enabled=True):
            growth, backoff = scaling.growth, scaling.backoff
            factor = growth or (1.0 / backoff if backoff else 2.0)
            if not float(factor).is_integer() or backoff not in (None, 1.0 / factor):
                reason = "jmp.DynamicLossScale multiplies and divides by one and the same whole factor"
                raise Unsupported(Capability.SCALING_FACTORS, reason)
            scale = jnp.asarray(INITIAL if scaling.initial is None else scaling.initial, jnp.float32)
            made = jmp.DynamicLossScale(scale)
            period = made.period if scaling.interval is None else scaling.interval
            counter = jnp.asarray(made.counter)
            return jax.device_put(jmp.DynamicLossScale(scale, counter, period, int(factor)), device)
        case StaticScaling(scale=constant):
            return jmp.StaticLossScale(constant)
        case _:
            return jmp.NoOpLossScale()


def settings(scale: jmp.LossScale) -> dict[str, float]:
    """What a dynamic loss scale was made with, empty for any other."""
    if not isinstance(scale, jmp.DynamicLossScale):
        return {}
    return {
        "initial": float(scale.loss_scale),
        "growth": float(scale.factor),
        "backoff": 1.0 / scale.factor,
        "interval": float(scale.period),
    }


def held(scale: jmp.LossScale) -> dict[str, Array]:
    """The scale and the growth counter; empty without scaling."""
    match scale:
        case jmp.DynamicLossScale():
            return {"scale": np.array(scale.loss_scale), "good_steps": np.array(scale.counter)}
        case jmp.StaticLossScale():
            return {"scale": np.array(scale.loss_scale, np.float32)}
        case _:
            return {}


def with_held(scale: jmp.LossScale, state: dict[str, Array], device: jax.Device) -> jmp.LossScale:
    """The loss scale with what another one of its kind held."""
    if not isinstance(scale, jmp.DynamicLossScale):
        return scale
    values = [jnp.asarray(state[name]) for name in ("scale", "good_steps")]
    return jax.device_put(jmp.DynamicLossScale(values[0], values[1], scale.period, scale.factor), device)
