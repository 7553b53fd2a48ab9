"""What a run refuses although its parts are supported, with a try of the library's own for each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jmp
from flax.training.dynamic_scale import DynamicScale

from fixtures.recipe import Recipe
from frameworks.contract import Capability, Unsupported
from frameworks.jax.scaler import LossScale

SECOND_UNSCALE = "JMP's unscale is a function of arrays, which do not tell whether they were unscaled before"
_MOVES_ALWAYS = "flax's DynamicScale, which alone has two factors, moves with every gradient that it takes"
_BY_ITSELF = "flax's DynamicScale, which alone has two factors, unscales by itself and has no call to do so by hand"


def check(scale: LossScale, recipe: Recipe) -> None:
    """Leaves the run if Flax's scale, which takes every gradient by itself, would take more than one an update.

    Raises:
        Unsupported: several micro-batches or several backward passes with factors that JMP has not.
    """
    if isinstance(scale, DynamicScale) and (recipe.accumulation > 1 or recipe.separate_losses):
        raise Unsupported(Capability.SCALING_FACTORS, _MOVES_ALWAYS, flax_moves_once_in_two_gradients)


def unscale_calls(scale: LossScale, asked: int | None, *, by_hand: bool) -> int:
    """How often gradients are unscaled before an update: JMP leaves it to the caller, who does it once.

    Raises:
        Unsupported: a second time, which JMP does not notice, or by hand, which Flax's scale does not offer.
    """
    if isinstance(scale, DynamicScale):
        if by_hand or asked is not None:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, _BY_ITSELF, flax_unscales_by_hand)
        return 1
    if asked is not None and asked > 1:
        raise Unsupported(Capability.SECOND_UNSCALE, SECOND_UNSCALE, second_unscale)
    return 1 if asked is None else asked


def second_unscale() -> bool:
    """A second unscale of the same gradients raises or leaves them as they are."""
    scale = jmp.DynamicLossScale(jnp.float32(1024.0))
    once = scale.unscale(jnp.full((2,), 1024.0))
    try:
        twice = scale.unscale(once)
    except (RuntimeError, ValueError):
        return True
    return bool((twice == once).all())


def flax_moves_once_in_two_gradients() -> bool:
    """Two gradients taken for one update are counted as one."""
    scale = DynamicScale()
    for _ in range(2):
        scale = scale.value_and_grad(lambda w: (w * 2.0).sum())(jnp.ones(2)).dynamic_scale
    return int(scale.fin_steps) == 1


def flax_unscales_by_hand() -> bool:
    """Flax's scale has JMP's call."""
    scale = DynamicScale(scale=jnp.float32(1024.0))
    gradient = jax.grad(lambda w: (w * scale.scale).sum())(jnp.ones(2))
    return bool((scale.unscale(gradient) == 1.0).all())
