"""A racing process: `python -m conformance.race.worker FRAMEWORK DEVICE MODE FIXTURE`, driven over its pipes.

Each line of standard input names a work and a count. Each is answered by a line of JSON on what was standard output,
with `value`, or with `refused` and the reason. Works are `load` (the processor's time of importing the framework),
`first`, `kinds` and those that `kinds` lists; times are in nanoseconds. What a framework prints goes to standard error.
The process ends at the end of its input.

It measures training steps through the ordinary trainer, NumPy work, and its own memory.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time_ns
from typing import Any, TextIO

import numpy as np

from fixtures.data import digits_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Recipe
from frameworks.base import measure_elapsed
from frameworks.contract import Framework, MissingDevice, Trainer, Unsupported
from frameworks.native_loop import FIXTURES as NATIVE
from frameworks.registry import UnknownFramework, load

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    **NATIVE,
    "small-mlp": lambda: (digits_mlp((32,)), digits_batch(32)),
}
"""Models and their batches, by the names of `conformance.race.race.FIXTURES`."""
RATE = 1e-6
"""So small that the weights hardly move: the last step has the work of the first."""
SETTLING = 3
"""Updates before the first timed one, after the first."""
_NUMBERS = 40_000


class TimedWork:
    """The timed work of one process; all works but `memory` give nanoseconds.

    Args:
        framework: bound to its device and mode.
        fixture: a name of `FIXTURES`.
    """

    def __init__(self, framework: Framework, fixture: str) -> None:
        self._framework = framework
        self._model, self._batch = FIXTURES[fixture]()
        self._trainer: Trainer | None = None
        self._numbers = np.random.default_rng(0).standard_normal(_NUMBERS)

    def first(self, _: int) -> int:
        """From the model as data to the end of its first update, in which frameworks compile."""

        def work() -> None:
            self._trainer = self._framework.trainer(self._model, Recipe(Adam(RATE)))
            self._trainer.update((self._batch,))

        spent = self._framework.measure_time(work)
        self.step(SETTLING)
        return spent

    def step(self, count: int) -> int:
        """So many updates."""
        trainer = self._trainer
        assert trainer is not None, "the first step comes first"

        def work() -> None:
            for _ in range(count):
                float(trainer.update((self._batch,)).loss)

        return self._framework.measure_time(work)

    def optimizer(self, count: int) -> int:
        """So many optimizer steps, without the forward and backward passes before each.

        Raises:
            Unsupported: the framework updates in the call that computes the gradients.
        """
        trainer, spent = self._trainer, 0
        assert trainer is not None, "the first step comes first"
        for _ in range(count):
            trainer.accumulate(self._batch, len(self._batch))
            spent += self._framework.measure_time(trainer.apply)
        return spent

    def yardstick(self, count: int) -> int:
        """So many rounds of NumPy work, which has no part in either version."""

        def work() -> None:
            for _ in range(count):
                values = self._numbers.copy()
                values.sort()
                np.exp(-np.abs(values)).cumsum()

        return measure_elapsed(work, process_time_ns)

    def memory(self, _: int) -> int:
        """Most resident bytes of this process so far; where Linux does not say, those of `getrusage`."""
        with suppress(OSError, StopIteration):
            lines = Path("/proc/self/status").read_text("ascii", errors="replace").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

    def kinds(self) -> tuple[str, ...]:
        """Names of the works that can be measured in rounds here."""
        try:
            self.optimizer(1)
        except Unsupported:
            return "step", "yardstick"
        return "step", "optimizer", "yardstick"


def serve(answers: TextIO, name: str, device: str, mode: str, fixture: str) -> None:
    """Answers every line of standard input."""
    works: TimedWork | None = None

    def answer(what: str, count: int) -> dict[str, Any]:
        nonlocal works
        if what == "load":
            begin = process_time_ns()
            framework = load(name, device, mode or None)
            spent = process_time_ns() - begin
            works = TimedWork(framework, fixture)
            target = f"{framework.device} {framework.mode}"
            return {"value": spent, "version": framework.version(), "numpy": np.__version__, "place": target}
        assert works is not None, "load comes first"
        return {"kinds": works.kinds()} if what == "kinds" else {"value": getattr(works, what)(count)}

    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        what, _, count = line.strip().partition(" ")
        try:
            document = answer(what, int(count or 1))
        except Exception as error:  # the race, which waits for an answer, shows it
            known = isinstance(error, UnknownFramework | MissingDevice | ValueError)
            text = " ".join(str(error).split())
            document = {"refused": text if known else f"{type(error).__name__}: {text}"}
        print(json.dumps(document), file=answers, flush=True)


if __name__ == "__main__":
    # Answers go to a copy of standard output, for the framework's own output must not be read as one.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as own:
        os.dup2(2, 1)
        serve(own, *sys.argv[1:])
