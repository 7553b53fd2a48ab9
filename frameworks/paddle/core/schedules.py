"""Learning-rate schedules that Paddle ships, and the one that follows a metric."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import paddle
from paddle.optimizer import lr
from paddle.optimizer.lr import ReduceOnPlateau

from fixtures import schedules as curves
from fixtures.schedules import Plateau
from frameworks.base import ships, takes
from frameworks.contract import Capability, Unsupported


def make_schedule(rate: float, curve: curves.Curve, last: int = -1) -> lr.LRScheduler:
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
            return lr.LinearWarmup(make_schedule(rate, rest), steps, rate * start, rate, last)
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


class PlateauRun:
    """An optimizer whose rate follows a metric, from 1.

    Attributes:
        part: whose state is saved and loaded, the schedule's in it.
    """

    part: Any

    def __init__(self, plateau: Plateau) -> None:
        self.scheduler = ReduceOnPlateau(
            1.0,
            plateau.mode,
            plateau.factor,
            plateau.patience - 1,
            plateau.threshold,
            "rel" if plateau.relative else "abs",
            plateau.cooldown,
            plateau.minimum,
        )
        self.begin()

    def begin(self) -> None:
        """Makes the optimizer."""
        self.part = paddle.optimizer.SGD(self.scheduler, [paddle.create_parameter([1], "float32")])

    def rate(self) -> float:
        """The rate of the next update."""
        return float(self.part.get_lr())


def rates(
    make: type[PlateauRun], plateau: Plateau, metrics: Sequence[float], saved: int | None = None
) -> tuple[float, ...]:
    """The learning rate after each metric; what a run saves is saved and loaded after `saved` of them."""
    run = make(plateau)
    result: list[float] = []
    for index, metric in enumerate(metrics):
        if index == saved:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "run.pdopt")
                paddle.save(run.part.state_dict(), file)
                run = make(plateau)
                run.part.set_state_dict(paddle.load(file))
        run.scheduler.step(metric)
        result.append(run.rate())
    return tuple(result)
