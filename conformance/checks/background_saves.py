"""Saves in the background: values of several types, errors of another thread, and processes that end inside a save.

A new process imports this module, so it imports no oracle.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from conformance.checks.subprocesses import FrameworkTask
from fixtures.arrays import Array
from frameworks.contract import BackgroundRule, Gate, LiveValues, Point, SaveSeries, ValueSaver

REACH_S = 30.0
"""Longest wait until a writer reaches its gate, in seconds."""
SAVES = 20
"""Largest number of saves until one raises the error of an earlier one."""
CAUSE = "the disk is full"
"""Message of the errors of writers and processes."""
CALLS = {"future": ("wait",), "wait": ("wait", "next-save"), "next-save": ("next-save",), "never": ()}
"""Calls that raise the error of a save, by declaration."""
Ending = Literal["killed", "returns", "raises", "failed"]
SIZES: Mapping[str, int] = {"value": 4}
LARGE = 2**20
"""Entries of a value whose save takes longer than the end of a process."""
UNTOUCHED = 7.0
"""Value of targets before a load."""


def make_values(saver: ValueSaver, value: float = UNTOUCHED, sizes: Mapping[str, int] = SIZES) -> LiveValues:
    """Return tensors of these sizes, all entries equal."""
    values = saver.values()
    for name, size in sizes.items():
        values.add(name, "tensor", value, size)
    return values


def make_kinds(saver: ValueSaver, value: float) -> LiveValues:
    """Return a value of each kind that the framework saves, by the kind's name, all entries equal."""
    values = saver.values()
    for kind in saver.kinds:
        values.add(kind, kind, value)
    return values


@contextmanager
def hold_save(series: SaveSeries, step: int, point: Point) -> Iterator[Gate]:
    """Begin a save in the background, hold its writer at a point, and let it go on at the end.

    Raises:
        TimeoutError: the writer does not reach the point.
    """
    gate = Gate(point)
    try:
        series.save(step, gate)
        if not gate.reached.wait(REACH_S):
            raise TimeoutError(f"the writer does not reach {point} within {REACH_S:.0f} s")
        yield gate
    finally:
        gate.open()


def save_and_fail(series: SaveSeries, saver: ValueSaver) -> None:
    """Begin a save whose writer raises at its last point."""
    gate = Gate(saver.points[-1], OSError(CAUSE))
    gate.open()
    series.save(1, gate)


def find_error(call: Callable[..., object], *arguments: object) -> BaseException | None:
    """Return the error of a call, also one that is no `Exception`; None if it returns."""
    try:
        call(*arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__module__.startswith("_pytest"):
            raise
        return error
    return None


def list_running_saves(saver: ValueSaver) -> list[tuple[str, Point, int]]:
    """Return the saves inside which a process is killed: shared objects, point and step; step 1 was saved before."""
    return [(shared, point, step) for shared in saver.objects for point in saver.points for step in (1, 2)]


def fill(like: LiveValues, value: float) -> dict[str, Array]:
    """Return arrays with the shapes of live values, filled with a value."""
    return {name: np.full_like(array, value) for name, array in like.read().items()}


def series_of(saver: ValueSaver, folder: Path, values: LiveValues) -> Iterator[tuple[str, SaveSeries]]:
    """Yield a series of saves for each set of objects that the framework's saves may share, and its name."""
    for shared in saver.objects:
        series = saver.series(folder / shared, values, shared)
        yield shared, series
        series.close()


def rule_of(saver: ValueSaver) -> BackgroundRule:
    """Return the rules of a saver with saves in the background."""
    assert saver.background is not None
    return saver.background


def find_error_of_next_save(series: SaveSeries) -> BaseException | None:
    """Return the error of the first of many saves that raises: a running writer may not yet have reached its own."""
    return next((error for step in range(2, 2 + SAVES) if (error := find_error(series.save, step, Gate()))), None)


def find_reported_error(saver: ValueSaver, folder: Path, shared: str, call: str) -> BaseException | None:
    """Return the error of a failed save that "wait" or "next-save" raises, the first call after it."""
    series = saver.series(folder, make_values(saver, 1.0), shared)
    save_and_fail(series, saver)
    error = find_error(series.wait) if call == "wait" else find_error_of_next_save(series)
    find_error(series.wait)
    find_error(series.close)
    return error


@dataclass(frozen=True)
class EndingTask(FrameworkTask):
    """A process that ends inside a save in the background, or after one that failed."""

    folder: Path
    ending: Ending

    def run(self) -> None:
        """Begin the saves and end."""
        saver = self.load().rule(ValueSaver)
        if self.ending == "killed":
            self.be_killed(saver)
        series = saver.series(self.folder, make_values(saver, 1.0, {"value": LARGE}), saver.objects[0])
        if self.ending == "failed":
            save_and_fail(series, saver)
            return
        with hold_save(series, 1, saver.points[-1]):
            """The writer goes on as the process ends."""
        if self.ending == "raises":
            raise RuntimeError(CAUSE)

    def be_killed(self, saver: ValueSaver) -> None:
        """Kill this process while the writers of several series are held."""
        with ExitStack() as held:
            for shared, point, step in list_running_saves(saver):
                values = make_values(saver, 1.0)
                series = saver.series(self.folder / f"{shared}-{point}-{step}", values, shared)
                series.save(1, Gate())
                series.wait()
                values.fill(2.0)
                with suppress(ValueError):  # the framework may refuse to save a step again
                    held.enter_context(hold_save(series, step, point))
            os.kill(os.getpid(), signal.SIGKILL)
