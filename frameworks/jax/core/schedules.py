"""Schedules that Optax ships, for the fixtures' curves."""

from functools import partial

import optax

from fixtures import schedules as curves
from frameworks.base import ships
from frameworks.contract import Capability, Unsupported


def shipped(rate: float, curve: curves.Curve | curves.Steps) -> optax.Schedule:
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
            given = {"init_value": rate, "peak_value": rate, "warmup_steps": 0, "end_value": rate * end}
            return optax.sgdr_schedule([given | {"decay_steps": steps} for steps in parts])
        case curves.Joined(
            parts=(curves.Linear(start=start, end=1.0, steps=steps), curves.Cosine() as cosine), boundaries=(boundary,)
        ) if steps == boundary:
            length, last = steps + cosine.steps, rate * cosine.end
            return optax.warmup_cosine_decay_schedule(rate * start, rate, steps, length, last)
        case curves.Joined(parts=parts, boundaries=boundaries):
            return optax.join_schedules([shipped(rate, part) for part in parts], list(boundaries))
    words: dict[type, str] = {
        curves.InverseTime: "inverse_time",
        curves.OneCycle: "cycle_momentum",
        curves.Chained: "chained",
    }
    word = words.get(type(curve), "triang")
    raise Unsupported(Capability.SCHEDULE, f"optax has no {curve} but one's own", partial(ships, "optax", word))
