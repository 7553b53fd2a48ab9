"""Goes on with a saved run in a new process: `python -m conformance.fresh TASK RESULT`, two pickle files.

The new process leaves the oracle out, whose import takes longer than the run.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.registry import load

if TYPE_CHECKING:
    from conformance.subject import Subject

LIMIT_S = 240
"""How long the new process may take, in seconds."""


@dataclass(frozen=True)
class Task:
    """A run to restore and the windows to train it on; `framework` is an adapter's "package.module:Class"."""

    framework: str
    device: str
    mode: str
    model: Model
    recipe: Recipe
    saved: Path
    windows: tuple[Window, ...]

    def run(self) -> list[dict[str, Array]]:
        """The run's state right after the load, and after each window."""
        trainer = load(self.framework, self.device, self.mode).trainer(self.model, self.recipe)
        trainer.restore(self.saved)
        states = [trainer.state()]
        for window in self.windows:
            trainer.update(window)
            states.append(trainer.state())
        return states


def resumed(subject: Subject, model: Model, recipe: Recipe, saved: Path, *windows: Window) -> list[dict[str, Array]]:
    """What `Task.run` returns in a new process of the same framework, device, mode and seed.

    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    made = type(subject.framework)
    name = f"{made.__module__}:{made.__qualname__}"
    seeded = subject.seeded(recipe)
    task = Task(name, subject.framework.device, subject.framework.mode, model, seeded, saved, windows)
    given, result = saved.with_name(f"{saved.name}.task"), saved.with_name(f"{saved.name}.result")
    given.write_bytes(pickle.dumps(task))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "conformance.fresh", str(given), str(result)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ended.returncode:
        raise RuntimeError(f"the new process ended with {ended.returncode}: {ended.stderr[-1000:]}")
    states: list[dict[str, Array]] = pickle.loads(result.read_bytes())
    return states


if __name__ == "__main__":
    task: Task = pickle.loads(Path(sys.argv[1]).read_bytes())
    Path(sys.argv[2]).write_bytes(pickle.dumps(task.run()))
