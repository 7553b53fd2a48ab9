"""Schedules that Keras ships, for the fixtures' curves."""

from functools import partial

import keras
from keras.optimizers import schedules

from fixtures.schedules import Cosine, CosineRestarts, Curve, Exponential, InverseTime, Joined, Linear, Polynomial
from frameworks.base import ships
from frameworks.contract import Capability, Unsupported


def make_schedule(rate: float, curve: Curve) -> keras.optimizers.schedules.LearningRateSchedule:
    """The schedule that follows a curve from a rate.

    Raises:
        Unsupported: SCHEDULE, where Keras has no class for it.
    """
    match curve:
        case Exponential(ratio=ratio, every=every, staircase=staircase):
            return schedules.ExponentialDecay(rate, every, ratio, staircase=staircase)
        case InverseTime(rate=slope):
            return schedules.InverseTimeDecay(rate, 1, slope)
        case Polynomial(steps=steps, power=power, end=end):
            return schedules.PolynomialDecay(rate, steps, rate * end, power)
        case Cosine(steps=steps, end=end):
            return schedules.CosineDecay(rate, steps, alpha=end)
        case CosineRestarts(first=first, multiply=multiply, end=end):
            return schedules.CosineDecayRestarts(rate, first, t_mul=float(multiply), alpha=end)
        case Joined(parts=(Linear(start=start, end=1.0, steps=steps), Cosine() as cosine), boundaries=(boundary,)) if (
            steps == boundary
        ):
            return schedules.CosineDecay(
                rate * start, cosine.steps, alpha=cosine.end, warmup_target=rate, warmup_steps=steps
            )
    word = {"Chained": "chain", "Joined": "sequential", "Linear": "linear"}.get(type(curve).__name__, "cycl")
    attempt = partial(ships, "keras.optimizers.schedules", word)
    raise Unsupported(Capability.SCHEDULE, f"keras.optimizers.schedules has none for {curve}", attempt)
