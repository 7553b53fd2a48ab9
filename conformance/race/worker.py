"""A racing process: `python -m conformance.race.worker FRAMEWORK DEVICE MODE FIXTURE`, driven over its pipes.

Each line of standard input names a work and a count. Each is answered by a line of JSON on what was standard output,
with `value`, or with `refused` and the reason. Works are `load` (the processor's time of importing the framework),
`first`, `kinds` and those that `kinds` lists; times are in nanoseconds. What a framework prints goes to standard error.
The process ends at the end of its input.

It measures training steps through the ordinary trainer, NumPy work, and its own memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time_ns
from typing import Any, TextIO

import numpy as np

from fixtures.data import digits_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Recipe
from frameworks.base import elapsed
from frameworks.contract import Framework, MissingDevice, Trainer, Unsupported
from frameworks.native_loop import FIXTURES as NATIVE
from frameworks.registry import UnknownFramework, load

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    **NATIVE,
    "small-mlp": lambda: (digits_mlp((32,)), digits_batch(32)),
}
"""Models and their batches, by the names of `conformance.race.processes.FIXTURES`."""

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


def serve(name: str, device: str, mode: str, fixture: str, answers: TextIO) -> None:
    """Answers every line of standard input."""
    works: TimedWork | None = None

    def loaded() -> dict[str, Any]:
        nonlocal works
        begin = process_time_ns()
        framework = load(name, device, mode or None)
        spent = process_time_ns() - begin
        works = TimedWork(framework, fixture)
        place = f"{framework.device} {framework.mode}"
        return {"value": spent, "version": framework.version(), "numpy": np.__version__, "place": place}

    def measured(what: str, count: int) -> dict[str, Any]:
        if works is None:
            raise RuntimeError("load comes first")
        if what == "kinds":
            return {"kinds": works.kinds()}
        if what == "first":
            return {"value": works.first()}
        work: Callable[[int], int] = getattr(works, what)
        return {"value": work(count)}

    _answer(answers, {"ready": os.getpid()})
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        try:
            _answer(answers, loaded() if what == "load" else measured(what, int(count or 1)))
        except (UnknownFramework, MissingDevice, ValueError) as error:
            _answer(answers, {"refused": " ".join(str(error).split())})
        except Exception as error:
            _answer(answers, {"refused": f"{type(error).__name__}: {' '.join(str(error).split())}"})


def _answer(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def main(name: str, device: str, mode: str, fixture: str) -> None:
    """Serves on a copy of standard output, for the framework's own output must not be read as an answer."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(name, device, mode, fixture, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
