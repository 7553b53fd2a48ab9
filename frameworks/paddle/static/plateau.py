"""Paddle's schedule that follows a metric, as a program's optimizer is given its rate."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paddle
from paddle.optimizer.lr import ReduceOnPlateau

from fixtures.plateau import Plateau
from frameworks.paddle.static.programs import ProgramState
from frameworks.paddle.training.plateau import schedule_of


class _Run:
    """A program that updates one weight by a schedule's rate."""

    def __init__(self, plateau: Plateau) -> None:
        self.scheduler: ReduceOnPlateau = schedule_of(plateau)
        self._store = ProgramState()
        self._built = self._store.build(self._make)

    def _make(self, startup: Any) -> tuple[tuple[Any, ...], dict[str, str]]:
        loss = paddle.create_parameter([1], "float32").sum()
        paddle.optimizer.SGD(self.scheduler).minimize(loss, startup_program=startup)
        return (loss,), {}

    def rate(self) -> float:
        """The rate that the executor sets for an update."""
        self._store.run(self._built, {})
        return float(self._store.read(self._built.program.lr_name))


def rates(plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
    """The learning rate after each metric; the schedule is saved and loaded after `saved` of them."""
    run = _Run(plateau)
    result: list[float] = []
    for place, metric in enumerate(metrics):
        if place == saved:
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "schedule.pdparams")
                paddle.save(run.scheduler.state_dict(), file)
                run = _Run(plateau)
                run.scheduler.set_state_dict(paddle.load(file))
        run.scheduler.step(metric)
        result.append(run.rate())
    return tuple(result)
