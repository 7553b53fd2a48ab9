"""Schedules that Optax ships, for the fixtures' curves, and the one that follows a metric."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import serialization
from optax.contrib import reduce_on_plateau

from fixtures import schedules as curves
from fixtures.schedules import Plateau
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported


def make_schedule(rate: float, curve: curves.Curve | curves.Steps) -> optax.Schedule:
    """The schedule that follows a curve from a rate.

    Raises:
        Unsupported: SCHEDULE, where Optax has no function for it.
    """
    match curve:
        case curves.Steps(boundaries=(), factors=(factor,)):
            return optax.constant_schedule(rate * factor)
        case curves.Exponential(ratio=ratio, every=every, staircase=staircase):
            return optax.exponential_decay(rate, every, ratio, staircase=staircase)
        case curves.Linear(start=start, end=end, steps=steps):
            return optax.linear_schedule(rate * start, rate * end, steps)
        case curves.Polynomial(steps=steps, power=power, end=end):
            return optax.polynomial_schedule(rate, rate * end, power, steps)
        case curves.Cosine(steps=steps, end=end):
            return optax.cosine_decay_schedule(rate, steps, alpha=end)
        case curves.OneCycle(top=top, up=up, steps=steps, end=end, momenta=None):
            return optax.cosine_onecycle_schedule(steps, rate * top, up / steps, top, 1.0 / end)
        case curves.CosineRestarts(first=first, multiply=multiply, end=end):
            parts = [first * multiply**number for number in range(6)]
            options = {"init_value": rate, "peak_value": rate, "warmup_steps": 0, "end_value": rate * end}
            return optax.sgdr_schedule([options | {"decay_steps": steps} for steps in parts])
        case curves.Joined(
            parts=(curves.Linear(start=start, end=1.0, steps=steps), curves.Cosine() as cosine), boundaries=(boundary,)
        ) if steps == boundary:
            length, last = steps + cosine.steps, rate * cosine.end
            return optax.warmup_cosine_decay_schedule(rate * start, rate, steps, length, last)
        case curves.Joined(parts=parts, boundaries=boundaries):
            return optax.join_schedules([make_schedule(rate, part) for part in parts], list(boundaries))
    keywords: dict[type, str] = {
        curves.InverseTime: "inverse_time",
        curves.OneCycle: "cycle_momentum",
        curves.Chained: "chained",
    }
    word = keywords.get(type(curve), "triang")
    raise Unsupported(Capability.SCHEDULE, f"optax has no {curve} but one's own", partial(ships, "optax", word))


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
    for index, metric in enumerate(metrics):
        if index == saved:
            state = serialization.from_bytes(chain.init(weight), serialization.to_bytes(state))
        moved, state = update(state, metric)
        result.append(-float(moved))
    return tuple(result)
