"""Twins of the reference and functions that misbehave, and devices whose times and bytes are known."""

from __future__ import annotations

import collections
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.models import blocks
from fixtures.recipe import Recipe
from frameworks.contract import SUPPORTED, Attempt, Capability, Declaration, Unsupported, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.model import Outcome


class Unnamed(ReferenceFramework):
    """Has no version."""

    def version(self) -> str:
        raise ZeroDivisionError("no version")


class Leaky(ReferenceFramework):
    """Every new trainer changes a process-wide counter."""

    trainers: ClassVar[int] = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        type(self).trainers += 1
        return super().trainer(model, recipe, weights)

    def global_state(self) -> dict[str, str]:
        return {**super().global_state(), "trainers": str(self.trainers)}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        type(self).trainers = int(state["trainers"])


class Refusing(ReferenceFramework):
    """Declares that it does not clip, and refuses schedules that it declares to follow."""

    def declares(self, capability: Capability) -> Declaration:
        if capability is Capability.CLIP:
            return Declaration(False, "gradients are never clipped here")
        return super().declares(capability)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.CLIP: bool}

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        if recipe.schedule is not None:
            raise Unsupported(Capability.SCHEDULE, "schedules are not followed after all")
        return super().trainer(model, recipe, weights)


class Restless(ReferenceFramework):
    """Every run starts with other weights."""

    _runs = 0

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self._runs += 1
        initial_weights = model.weights(recipe.seed) if weights is None else weights
        factor = 1.0 + self._runs / 1024.0
        moved = {name: (value * factor).astype(value.dtype) for name, value in initial_weights.items()}
        return super().trainer(model, recipe, moved)


class AbortingAtOnce(ReferenceFramework):
    """Making a trainer aborts the process."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        os.abort()


class Flaky(ReferenceFramework):
    """Is wrong in the first run and right in later ones; the file named by FLAKY stores the first one."""

    def steady(self) -> bool:
        """Whether this process belongs to a later run than the first."""
        path = Path(os.environ["FLAKY"])
        if not path.exists():
            path.write_text(str(os.getppid()))
        return path.read_text() != str(os.getppid())


def technique_of(recipe: Recipe) -> str:
    """ "mixed", "recomputed", "accumulated" or "plain"."""
    if recipe.precision.level != "O0":
        return "mixed"
    if recipe.recompute is not None:
        return "recomputed"
    return "accumulated" if recipe.accumulation > 1 else "plain"


class DeviceTrainer(ReferenceTrainer):
    """A run that simulates the device's time and memory; only its first update is computed."""

    framework: Device
    pace = 1.0
    first_update: Update | None = None

    def update(self, window: Window) -> Update:
        self.framework.pass_time(self.pace, technique_of(self.recipe))
        self.last = window[-1]
        self.first_update = self.first_update or super().update(window)
        return self.first_update

    def peak_bytes(self) -> int:
        return sum(4 * value.size for value in self.masters.values()) + self.framework.device_bytes(self, self.last)


TIMES = {"mixed": 0.5, "recomputed": 1.33}
"""Of a step with a technique, by that of a plain one."""


class Device(ReferenceFramework):
    """A device on which mixed precision takes half the time, and recomputation a third more."""

    trainer_class = DeviceTrainer
    peaks: ClassVar[Mapping[str, float]] = {}
    """What a technique's bytes are multiplied with."""

    def __init__(
        self, device: str = "cuda", mode: str | None = None, times: Mapping[str, float] = TIMES, drift: float = 0.0
    ) -> None:
        """`times`: by technique. `drift`: by what share each new run is slower than the one before."""
        super().__init__(device, mode)
        self.times, self.drift = times, drift
        self.now, self.float32, self.pace = 0.0, 1.0, 1.0
        self.noise = np.random.default_rng(0)
        self.scopes: list[bool | None] = []

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda")

    def declares(self, capability: Capability) -> Declaration:
        return SUPPORTED if capability in (Capability.PEAK_BYTES, Capability.TF32) else super().declares(capability)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        trainer = super().trainer(model, recipe, weights)
        assert isinstance(trainer, DeviceTrainer)
        trainer.framework, trainer.pace = self, self.pace
        self.pace *= 1.0 + self.drift
        return trainer

    @contextmanager
    def tf32(self, allowed: bool | None) -> Iterator[None]:
        self.scopes.append(allowed)
        former, self.float32 = self.float32, 0.6 if allowed else 1.0
        yield
        self.float32 = former

    def measure_time(self, work: Callable[[], object]) -> int:
        begin = self.now
        work()
        return round(1e9 * (self.now - begin))

    def pass_time(self, pace: float, technique: str) -> None:
        """Time of one update: a millisecond in float32 with 0.1 % of noise."""
        factor = (
            self.times.get(technique, 1.0) if technique == "mixed" else self.float32 * self.times.get(technique, 1.0)
        )
        self.now += 1e-3 * pace * factor * self.noise.normal(1.0, 0.001)

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        """Peak bytes of one micro-batch: the counted ones, the largest segment and two activations."""
        count = run.saved_bytes(batch)
        width, recompute = run.masters["0.bias"].size, run.recipe.recompute
        if recompute is not None:
            equal = blocks((len(run.model.layers) - 1) // 2 // recompute.segments, width, run.model.sample[0])
            recipes = [run.recipe.replace(recompute=None), run.recipe.replace(recompute=type(recompute)(1))]
            segment = [ReferenceFramework("cpu").trainer(equal, recipe).saved_bytes(batch) for recipe in recipes]
            count += segment[0] - segment[1]
        return round(count * self.peaks.get(technique_of(run.recipe), 1.0)) + 2 * 4 * len(batch) * width


class KeepsFloat32(Device):
    """Under mixed precision half of the activations are saved in float32 too."""

    peaks: ClassVar[Mapping[str, float]] = {"mixed": 2.0}


class KeepsSegments(Device):
    """Recomputed segments keep their activations."""

    peaks: ClassVar[Mapping[str, float]] = {"recomputed": 2.6}


class KeepsMicroBatches(Device):
    """Activations of micro-batches are freed at the end of the window."""

    peaks: ClassVar[Mapping[str, float]] = {"accumulated": 8.0}


class NoPeak(Device):
    """The reported peak is the bytes of the weights."""

    def device_bytes(self, run: ReferenceTrainer, batch: Batch) -> int:
        del run, batch
        return 0


BIG = 10 * 2**20
"""Characters of a text that is too long."""


@dataclass(frozen=True)
class Behaviour:
    """An action, and the outcome of the test that it happens in."""

    act: Callable[[], object]
    outcome: Outcome


def surroundings() -> dict[str, object]:
    """The state that every test should find as it was when the session began."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {
        "folder": os.getcwd(),
        "variables": environ,
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
        "errors": np.geterr(),
    }


class HostileError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


def throw(error: BaseException) -> object:
    raise error


RAISED = {
    "text_raises": HostileError(),
    "half_a_surrogate_pair": ValueError("\ud800 and \udfff"),
    "escapes_for_a_terminal": ValueError("\x1b[2J\x1b]0;x\x07\x9b31m\u202e"),
    "long_text": ValueError("x" * BIG),
    "system_exit": SystemExit(0),
    "keyboard_interrupt": KeyboardInterrupt(),
    "base_exception": type("Else", (BaseException,), {})("else"),
    "group_of_exceptions": ExceptionGroup("group", [ValueError("first"), HostileError()]),
    "cannot_be_pickled": ValueError("locked", threading.Lock(), lambda: None),
    "pytest_exit": pytest.exit.Exception("", 0),
    "pytest_skip": pytest.skip.Exception("not today"),
    "pytest_xfail": pytest.xfail.Exception("not today"),
}
RETURNED = {"not_a_number": float("nan"), "nothing": None, "another_shape": np.ones((3, 0, 2))}


def fork_that_goes_on() -> None:
    child = os.fork()
    if child:
        os.waitpid(child, 0)


def another_folder() -> None:
    os.makedirs("removed", exist_ok=True)
    os.chdir("removed")
    os.rmdir(os.getcwd())


def replaced_streams() -> None:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def handlers_replaced() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(7))


def warnings_are_errors() -> None:
    warnings.simplefilter("error")
    warnings.showwarning = None  # type: ignore[assignment]


def variables_changed() -> None:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "77"


SURVIVED: dict[str, Callable[[], object]] = {
    "fork_that_goes_on": fork_that_goes_on,
    "another_folder": another_folder,
    "replaced_streams": replaced_streams,
    "handlers_replaced": handlers_replaced,
    "threads_left_running": lambda: threading.Thread(target=time.sleep, args=(3600.0,), daemon=False).start(),
    "warnings_are_errors": warnings_are_errors,
    "variables_changed": variables_changed,
    "floating_point_errors_raise": lambda: np.seterr(all="raise"),
    "prints_much": lambda: [sys.stdout.write("x" * (BIG // 10)) for _ in range(10)],
}


def swallow_every_exception() -> None:
    while True:
        try:
            time.sleep(3600.0)
        except BaseException:
            continue


BEHAVIOURS = {
    **{name: Behaviour(partial(throw, error), Outcome.ERROR) for name, error in RAISED.items()},
    **{name: Behaviour(lambda value=value: value, Outcome.FAIL) for name, value in RETURNED.items()},
    **{name: Behaviour(lambda act=act: (act(), 1.0)[1], Outcome.PASS) for name, act in SURVIVED.items()},
}
"""Actions that leave the process alive, by name; with those of `SURVIVED` the framework's result is right."""

DEADLY = {
    "ends_the_process": Behaviour(partial(os._exit, 0), Outcome.CRASH),
    "aborts": Behaviour(os.abort, Outcome.CRASH),
    "is_killed": Behaviour(lambda: os.kill(os.getpid(), signal.SIGKILL), Outcome.CRASH),
    "sleeps": Behaviour(partial(time.sleep, 3600.0), Outcome.TIMEOUT),
    "swallows_every_exception": Behaviour(swallow_every_exception, Outcome.TIMEOUT),
    "loops_in_c": Behaviour(lambda: collections.deque(itertools.repeat(1), maxlen=0), Outcome.TIMEOUT),
}
"""Actions that end the process, by name."""
