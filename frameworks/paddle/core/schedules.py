"""Schedules that Paddle ships, for the fixtures' curves."""

from functools import partial

from paddle.optimizer import lr

from fixtures import schedules as curves
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported


def shipped(rate: float, curve: curves.Curve, last: int = -1) -> lr.LRScheduler:
    """The schedule that follows a curve from a rate, after update `last`, from 0.

    Raises:
        Unsupported: SCHEDULE, where Paddle has no class for it.
    """
    match curve:
        case curves.Exponential(ratio=ratio, every=1):
            return lr.ExponentialDecay(rate, ratio, last)
        case curves.Exponential(ratio=ratio, every=every, staircase=True):
            return lr.StepDecay(rate, every, ratio, last)
        case curves.InverseTime(rate=slope):
            return lr.InverseTimeDecay(rate, slope, last)
        case curves.Linear(start=start, end=end, steps=steps):
            return lr.LinearLR(rate, steps, start_factor=start, end_factor=end, last_epoch=last)
        case curves.Polynomial(steps=steps, power=power, end=end):
            return lr.PolynomialDecay(rate, steps, end_lr=rate * end, power=power, last_epoch=last)
        case curves.Cosine(steps=steps, end=end):
            return lr.CosineAnnealingDecay(rate, steps, rate * end, last)
        case curves.CosineRestarts(first=first, multiply=multiply, end=end):
            return lr.CosineAnnealingWarmRestarts(rate, first, multiply, rate * end, last)
        case curves.Triangular(top=top, up=up, shrink=shrink):
            return lr.CyclicLR(rate, rate * top, up, mode="triangular2" if shrink else "triangular", last_epoch=last)
        case curves.Joined(
            parts=(curves.Linear(start=start, end=1.0, steps=steps), curves.Curve() as rest), boundaries=(boundary,)
        ) if steps == boundary:
            return lr.LinearWarmup(shipped(rate, rest), steps, rate * start, rate, last)
        case curves.OneCycle(top=top, up=up, steps=steps, end=end, momenta=None):
            share = (up + 1) / (steps + 1)
            return lr.OneCycleLR(rate * top, steps + 1, top, rate * end, share, last_epoch=last)
        case curves.OneCycle():
            attempt = partial(takes, lr.OneCycleLR, "cycle_momentum", "max_momentum")
        case curves.Chained():
            attempt = partial(ships, "paddle.optimizer.lr", "chain")
        case curves.Joined():
            attempt = partial(ships, "paddle.optimizer.lr", "sequential")
        case _:
            attempt = partial(takes, lr.ExponentialDecay, "every", "step_size", "decay_steps")
    raise Unsupported(Capability.SCHEDULE, f"paddle.optimizer.lr has no {curve} but the user's LambdaDecay", attempt)
