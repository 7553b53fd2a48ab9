"""The loss scale of a recipe: JMP's or, with factors that JMP has not, Flax's; its settings and its state."""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jmp
import numpy as np
from flax.training.dynamic_scale import DynamicScale

from fixtures.arrays import Array
from fixtures.recipe import DynamicScaling, Recipe, StaticScaling
from frameworks.contract import Capability, Unsupported
from frameworks.jax.core.arrays import Place
from frameworks.jax.training.optimizer_probes import flax_moves_once_in_two_gradients, flax_unscales_manually

INITIAL = 2.0**15
"""JMP has no default scale; its documentation begins with this."""

MINIMUM = 1.0
"""JMP's own floor of the scale, which a recipe's other factors keep."""

MOVES_ALWAYS = "flax's DynamicScale, which alone has two factors, moves with every gradient that it takes"
UNSCALES_ITSELF = (
    "flax's DynamicScale, which alone has two factors, unscales by itself and has no call to do so by hand"
)

LossScale: TypeAlias = jmp.NoOpLossScale | jmp.StaticLossScale | jmp.DynamicLossScale | DynamicScale


class ScaleUpdate(NamedTuple):
    """The result of Flax's scale for gradients: whether they are finite, and the next scale."""

    finite: jax.Array
    scale: DynamicScale


def loss_scale(recipe: Recipe, place: Place) -> LossScale:
    """The loss scale of a recipe; what it leaves None is left to JMP, or to Flax.

    JMP multiplies and divides by one and the same whole factor. Flax's scale has a factor of its own for each.
    """
    match recipe.scaling:
        case DynamicScaling(enabled=True) as scaling:
            factor = scaling.growth or (1.0 / scaling.backoff if scaling.backoff else 2.0)
            one = float(factor).is_integer() and scaling.backoff in (None, 1.0 / factor)
            one = one and recipe.way("scaling") != "flax"
            return jax.device_put(_of_jmp(scaling, int(factor)) if one else _of_flax(scaling), place)
        case StaticScaling(scale=constant):
            return jmp.StaticLossScale(constant)
        case _:
            return jmp.NoOpLossScale()


def _of_jmp(scaling: DynamicScaling, factor: int) -> jmp.DynamicLossScale:
    scale = jnp.asarray(INITIAL if scaling.initial is None else scaling.initial, jnp.float32)
    made = jmp.DynamicLossScale(scale)
    period = made.period if scaling.interval is None else scaling.interval
    return jmp.DynamicLossScale(scale, jnp.asarray(made.counter), period, factor)


def _of_flax(scaling: DynamicScaling) -> DynamicScale:
    given = {
        "growth_factor": scaling.growth,
        "backoff_factor": scaling.backoff,
        "growth_interval": scaling.interval,
        "scale": None if scaling.initial is None else jnp.float32(scaling.initial),
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return DynamicScale(**chosen, minimum_scale=MINIMUM, fin_steps=jnp.int32(0))


def is_dynamic(scale: LossScale) -> bool:
    """Whether an overflow skips the update: JMP's documentation does so for its dynamic scale only."""
    return isinstance(scale, jmp.DynamicLossScale | DynamicScale)


def unscales_itself(scale: LossScale) -> bool:
    """Whether gradients come from it without the scale, in float32, as Flax's gives them."""
    return isinstance(scale, DynamicScale)


def refuse_several_gradients(scale: LossScale, recipe: Recipe) -> None:
    """Refuses a recipe by which Flax's scale, which moves with every gradient, would move more than once in an update.

    Raises:
        Unsupported: another way to differentiate, which it does itself,
            several micro-batches or several backward passes.
    """
    if isinstance(scale, DynamicScale) and recipe.way("backward"):
        raise Unsupported(Capability.SCALING_FACTORS, UNSCALES_ITSELF, flax_unscales_manually)
    if isinstance(scale, DynamicScale) and (recipe.accumulation > 1 or recipe.separate_losses):
        raise Unsupported(Capability.SCALING_FACTORS, MOVES_ALWAYS, flax_moves_once_in_two_gradients)


def unscale_calls(scale: LossScale, asked: int | None, *, manual: bool) -> int:
    """How often gradients are unscaled before an update: JMP leaves it to the caller, who does it once.

    Raises:
        Unsupported: by hand, which Flax's scale does not offer.
    """
    if isinstance(scale, DynamicScale) and (manual or asked is not None):
        raise Unsupported(Capability.EXPLICIT_UNSCALE, UNSCALES_ITSELF, flax_unscales_manually)
    return 1 if asked is None else asked


def current(scale: LossScale) -> float:
    """The factor of losses."""
    return float(scale.scale if isinstance(scale, DynamicScale) else scale.loss_scale)


def settings(scale: LossScale) -> dict[str, float]:
    """The settings of a dynamic loss scale, empty for any other."""
    match scale:
        case jmp.DynamicLossScale():
            growth, backoff, interval = scale.factor, 1.0 / scale.factor, scale.period
        case DynamicScale():
            growth, backoff, interval = scale.growth_factor, scale.backoff_factor, scale.growth_interval
        case _:
            return {}
    return {"initial": current(scale), "growth": float(growth), "backoff": backoff, "interval": float(interval)}


def arrays_of(scale: LossScale) -> dict[str, Array]:
    """The scale and the growth counter; empty without scaling."""
    match scale:
        case jmp.DynamicLossScale():
            return {"scale": np.array(scale.loss_scale), "good_steps": np.array(scale.counter)}
        case DynamicScale():
            return {"scale": np.array(scale.scale), "good_steps": np.array(scale.fin_steps)}
        case jmp.StaticLossScale():
            return {"scale": np.array(scale.loss_scale, np.float32)}
        case _:
            return {}


def with_state(scale: LossScale, state: dict[str, Array], place: Place) -> LossScale:
    """The loss scale with the state of another one."""
    if not is_dynamic(scale):
        return scale
    value, counter = (jnp.asarray(state[name]) for name in ("scale", "good_steps"))
    if isinstance(scale, DynamicScale):
        return jax.device_put(scale.replace(scale=value, fin_steps=counter), place)
    assert isinstance(scale, jmp.DynamicLossScale)
    return jax.device_put(jmp.DynamicLossScale(value, counter, scale.period, scale.factor), place)


@jax.jit
def adjusted(scale: Any, finite: jax.Array) -> Any:
    """JMP's scale after an update."""
    return scale.adjust(finite)
