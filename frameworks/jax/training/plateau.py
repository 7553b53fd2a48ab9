"""Optax's schedule that follows a metric."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import serialization
from optax.contrib import reduce_on_plateau

from fixtures.plateau import Plateau
from frameworks.base import takes
from frameworks.contract import Capability, Unsupported


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate of each update, which is given its metric; its state is saved and loaded after `saved` of them.

    Raises:
        Unsupported: PLATEAU, for the largest metric.
    """
    if plateau.mode == "max":
        attempt = partial(takes, reduce_on_plateau, "mode")
        raise Unsupported(Capability.PLATEAU, "optax.contrib.reduce_on_plateau follows the smallest metric", attempt)
    margin = {"rtol": plateau.threshold, "atol": 0.0} if plateau.relative else {"rtol": 0.0, "atol": plateau.threshold}
    plateaued = reduce_on_plateau(
        plateau.factor, plateau.patience, cooldown=plateau.cooldown, min_scale=plateau.minimum, **margin
    )
    chain = optax.chain(optax.sgd(1.0), plateaued)
    weight = jnp.zeros(())
    state = chain.init(weight)
    update = jax.jit(lambda state, metric: chain.update(jnp.ones(()), state, weight, value=metric))
    result: list[float] = []
    for place, metric in enumerate(metrics):
        if place == saved:
            state = serialization.from_bytes(chain.init(weight), serialization.to_bytes(state))
        moved, state = update(state, metric)
        result.append(-float(moved))
    return tuple(result)
