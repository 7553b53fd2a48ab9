"""What a racing process measures: training steps through the ordinary trainer, NumPy work, and its own memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns

import numpy as np

from fixtures.data import digits_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Recipe
from frameworks.base import elapsed
from frameworks.contract import Framework, Trainer, Unsupported
from frameworks.native_loop import FIXTURES as NATIVE

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    **NATIVE,
    "small-mlp": lambda: (digits_mlp((32,)), digits_batch(32)),
}
"""Models and their batches, by the names of `conformance.race.samples.FIXTURES`."""

RATE = 1e-6
"""So small that the weights hardly move: the last step has the work of the first."""

SETTLING = 3
"""Updates before the first timed one, after the first."""

_STATUS = Path("/proc/self/status")
_NUMBERS = 40_000


class TimedWork:
    """The timed work of one process.

    Args:
        framework: bound to its device and mode.
        fixture: a name of `FIXTURES`.
    """

    def __init__(self, framework: Framework, fixture: str) -> None:
        self._framework = framework
        self._model, batch = FIXTURES[fixture]()
        self._window = (batch,)
        self._items = len(batch)
        self._trainer: Trainer | None = None
        self._numbers = np.random.default_rng(0).standard_normal(_NUMBERS)

    def first(self) -> int:
        """Nanoseconds from the model as data to the end of its first update, in which frameworks compile."""

        def work() -> None:
            self._trainer = self._framework.trainer(self._model, Recipe(Adam(RATE)))
            self._trainer.update(self._window)

        spent = self._framework.timed(work)
        for _ in range(SETTLING):
            self._step()
        return spent

    def step(self, count: int) -> int:
        """Nanoseconds of so many updates."""

        def work() -> None:
            for _ in range(count):
                self._step()

        return self._framework.timed(work)

    def optimizer(self, count: int) -> int:
        """Nanoseconds of so many optimizer steps, without the forward and backward passes before each.

        Raises:
            Unsupported: the framework updates in the call that computes the gradients.
        """
        trainer = self._running()
        spent = 0
        for _ in range(count):
            trainer.accumulate(self._window[0], self._items)
            spent += self._framework.timed(trainer.apply)
        return spent

    def yardstick(self, count: int) -> int:
        """Nanoseconds of so many rounds of NumPy work, which has no part in either version."""

        def work() -> None:
            for _ in range(count):
                values = self._numbers.copy()
                values.sort()
                np.exp(-np.abs(values)).cumsum()

        return elapsed(work, process_time_ns)

    def memory(self, count: int) -> int:
        """Most resident bytes of this process so far."""
        return peak_bytes()

    def kinds(self) -> tuple[str, ...]:
        """Names of the works that can be measured in rounds here."""
        try:
            self.optimizer(1)
        except Unsupported:
            return "step", "yardstick"
        return "step", "optimizer", "yardstick"

    def _step(self) -> None:
        float(self._running().update(self._window).loss)

    def _running(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("the first step comes first")
        return self._trainer


def peak_bytes() -> int:
    """Most resident bytes of this process so far; where Linux does not say, those of `getrusage`."""
    try:
        lines = _STATUS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
