"""Options that Optax' optimizers lack, and attempts."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import jax.numpy as jnp
import optax

from fixtures.recipe import Adafactor, AdamW, Muon, Recipe
from frameworks.contract import Attempt, Capability, Unsupported

REFUSED_OPTIONS: dict[Capability, str] = {
    Capability.SINGLE: "optax updates a tree of parameters; optax.flatten is the one other way",
    Capability.FUSED: "Optax has no kernels of its own: jax.jit fuses what it compiles",
    Capability.CAPTURABLE: "Optax keeps all state in arrays, and has no other way to keep it",
}
if not (hasattr(optax.contrib, "muon") and "consistent_rms" in signature(optax.contrib.muon).parameters):
    _NONE = "this version of Optax has no optax.contrib.muon with consistent_rms"
    REFUSED_OPTIONS |= dict.fromkeys((Capability.MUON, Capability.WIDTH_RATE, Capability.UNADJUSTED_RATE), _NONE)
_FLOOR = "optax.adafactor has no argument for the least RMS of a parameter, which is 1e-3"
_JOINED = "optax.flatten makes one vector of all parameters, which has no rows and columns"
_AMSGRAD = "optax.adamw has no AMSGrad, and optax.amsgrad no decoupled decay"
_MASK = "optax.flatten joins all parameters, so that a mask of weight decay cannot name one"


def attempts() -> dict[Capability, Attempt]:
    """Attempts for each option that is refused."""
    return {
        Capability.SINGLE: partial(_steps, optax.sgd, foreach=False),
        Capability.FUSED: partial(_steps, optax.sgd, fused=True),
        Capability.CAPTURABLE: partial(_steps, optax.adam, capturable=True),
        **({} if Capability.MUON not in REFUSED_OPTIONS else {Capability.MUON: _makes_muon}),
    }


def require(recipe: Recipe) -> None:
    """Refuses combinations of options.

    Raises:
        Unsupported: Optax has one of them without the other.
    """
    if isinstance(recipe.optimizer, AdamW) and recipe.optimizer.amsgrad:
        raise Unsupported(Capability.AMSGRAD, _AMSGRAD, partial(_steps, optax.adamw, amsgrad=True))
    optimizer = recipe.optimizer
    if isinstance(optimizer, Adafactor) and optimizer.epsilon2 != Adafactor().epsilon2:
        raise Unsupported(Capability.ADAFACTOR, _FLOOR, partial(_steps, optax.adafactor, eps2=optimizer.epsilon2))
    if isinstance(optimizer, Adafactor | Muon) and recipe.implementation == "foreach":
        raise Unsupported(Capability.FOREACH, _JOINED, _factors_flat)
    if recipe.implementation == "foreach" and recipe.undecayed:
        raise Unsupported(Capability.DECAY_EXCLUDED, _MASK, _masks_flat)


def _update_params(optimizer: optax.GradientTransformation, params: Any) -> Any:
    gradients = {name: jnp.ones_like(value) for name, value in params.items()}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return optax.apply_updates(params, updates)


def _steps(kind: Callable[..., optax.GradientTransformation], **arguments: Any) -> bool:
    return bool(_update_params(kind(0.5, **arguments), {"a": jnp.ones(2)})["a"][0] != 1.0)


def _masks_flat() -> bool:
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    optimizer = optax.flatten(
        optax.adamw(0.5, weight_decay=0.5, mask=lambda tree: {name: name == "a" for name in tree})
    )
    moved = _update_params(optimizer, params)
    return bool((moved["a"] != moved["b"]).all())


def _makes_muon() -> bool:
    return bool(_update_params(optax.contrib.muon(0.5), {"a": jnp.ones((2, 2))})["a"][0, 0] != 1.0)


def _factors_flat() -> bool:
    """Whether Adafactor has the same state of a matrix that is joined with others as of one that is not."""
    params = {"a": jnp.ones((2, 3))}
    plain, flat = (optimizer.init(params)[0] for optimizer in (_adafactor(), optax.flatten(_adafactor())))
    return bool(jnp.shape(flat.v_row) == plain.v_row["a"].shape)


def _adafactor() -> optax.GradientTransformation:
    return optax.adafactor(0.5, min_dim_size_to_factor=0)
