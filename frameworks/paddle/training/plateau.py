"""Paddle's schedule that follows a metric."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from paddle.optimizer.lr import ReduceOnPlateau

from fixtures.plateau import Plateau


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
    for place, metric in enumerate(metrics):
        if place == saved:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "run.pdopt")
                paddle.save(run.part.state_dict(), file)
                run = make(plateau)
                run.part.set_state_dict(paddle.load(file))
        run.scheduler.step(metric)
        result.append(run.rate())
    return tuple(result)
