"""Saves of values in the background: one thread and one file for each save, renamed when it is whole.

A fault overrides one of `copy_values`, `partial_file`, `write`, `name_latest`, `keep_error` and `check`.
"""

import atexit
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock, Thread

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import NUMBERS, BackgroundRule, Gate, LiveValues, SaveSeries, ValueSaver

LATEST = "latest"
RULE = BackgroundRule("wait", "own-objects", "finished", "finishes")


class ReferenceSeries(SaveSeries):
    """A series of saves of the same values; a save copies them before it returns."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.values = folder, values
        self.threads: list[Thread] = []
        self.errors: list[BaseException] = []
        self.lock = Lock()
        atexit.register(self.report)

    def save(self, step: int, gate: Gate | None = None) -> None:
        self.raise_error()
        if gate is None:
            self.write(step, self.values.read(), Gate())
            return
        self.threads.append(Thread(target=self.run, args=(step, self.copy_values(), gate)))
        self.threads[-1].start()

    def run(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        """Writes a save in the background."""
        try:
            self.write(step, arrays, gate)
        except Exception as error:
            self.keep_error(error)

    def copy_values(self) -> Mapping[str, Array]:
        """Copies of the present values."""
        return self.values.read()

    def write(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        """Writes a file, renames it, and then names it the latest."""
        gate.hold("data")
        partial = self.partial_file(step)
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        gate.hold("commit")
        partial.replace(self.file(step))
        self.name_latest(step)

    def file(self, step: int) -> Path:
        """The file of a whole save."""
        return self.folder / f"{step}.npz"

    def partial_file(self, step: int) -> Path:
        """The file of a save that is being written."""
        return self.folder / f"{step}.partial"

    def name_latest(self, step: int) -> None:
        """Names a step the latest, unless a later one is."""
        with self.lock:
            if step > (self.latest() or 0):
                file = self.folder / f"{LATEST}.partial"
                file.write_text(str(step))
                file.replace(self.folder / LATEST)

    def keep_error(self, error: Exception) -> None:
        """Keeps an error of the background, to be raised by the next call."""
        self.errors.append(error)

    def raise_error(self) -> None:
        """Raises an error of the background once."""
        if self.errors:
            raise self.errors.pop(0)

    def wait(self) -> None:
        while self.threads:
            self.threads.pop(0).join()
        self.raise_error()

    def latest(self) -> int | None:
        file = self.folder / LATEST
        return int(file.read_text()) if file.is_file() else None

    def load(self, step: int, target: LiveValues) -> None:
        file = self.file(step)
        try:
            with np.load(file) as saved:
                arrays = dict(saved)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
        self.check(arrays, target)
        self.place(arrays, target)

    def check(self, arrays: Mapping[str, Array], values: LiveValues) -> None:
        """Refuses a save of other names or shapes."""
        saved, wanted = ({name: array.shape for name, array in tree.items()} for tree in (arrays, values.read()))
        if saved != wanted:
            raise ValueError(f"saved values: got {saved}, want {wanted}")

    def place(self, arrays: Mapping[str, Array], values: LiveValues) -> None:
        """Puts every array into the value of its name."""
        for name, array in arrays.items():
            match values.kinds[name]:
                case "number":
                    values.tree[name] = float(array)
                case "list":
                    values.tree[name][NUMBERS][:] = array.tolist()
                case _:
                    values.tree[name][: len(array)] = array

    def close(self) -> None:
        self.wait()
        atexit.unregister(self.report)

    def report(self) -> None:
        """Reports errors that nobody asked for, at the end of the process, after all threads have ended."""
        for error in self.errors:
            print(f"a save in the background failed: {error}", file=sys.stderr)


SAVER = ValueSaver(
    LiveValues, ReferenceSeries, ("tensor", "view", "array", "list", "number"), ("folder",), ("data", "commit"), RULE
)
