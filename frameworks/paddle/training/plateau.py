"""Paddle's schedule that follows a metric."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import paddle
from paddle.optimizer.lr import ReduceOnPlateau

from fixtures.plateau import Plateau


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each metric; an optimizer and its schedule are saved and loaded after `saved` of them."""
    stepper, scheduler = _made(plateau)
    result: list[float] = []
    for place, metric in enumerate(metrics):
        if place == saved:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "run.pdopt")
                paddle.save(stepper.state_dict(), file)
                stepper, scheduler = _made(plateau)
                stepper.set_state_dict(paddle.load(file))
        scheduler.step(metric)
        result.append(float(stepper.get_lr()))
    return tuple(result)


def schedule_of(plateau: Plateau) -> ReduceOnPlateau:
    """A new schedule, whose rate is 1."""
    return ReduceOnPlateau(
        1.0,
        plateau.mode,
        plateau.factor,
        plateau.patience - 1,
        plateau.threshold,
        "rel" if plateau.relative else "abs",
        plateau.cooldown,
        plateau.minimum,
    )


def _made(plateau: Plateau) -> tuple[paddle.optimizer.Optimizer, ReduceOnPlateau]:
    scheduler = schedule_of(plateau)
    return paddle.optimizer.SGD(scheduler, [paddle.create_parameter([1], "float32")]), scheduler
