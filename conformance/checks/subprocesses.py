"""Runs the subject in a new process.

    python -m conformance.checks.subprocesses TASK RESULT    two pickle files

A run that is restored in a new process cannot use state of the old one, and some allocators report the peak of their
process only. The new process does not import the oracle, which takes longer than the run.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Framework, PostTraining
from frameworks.registry import load

if TYPE_CHECKING:
    from conformance.checks.subject import Subject

LIMIT_S = 240
"""Time limit of the new process, in seconds."""


class Runnable(Protocol):
    """A task for a new process; it and its result can be pickled."""

    def run(self) -> Any:
        """Do the work and return its result."""


@dataclass(frozen=True)
class FrameworkTask:
    """What loads a framework in the new process; `framework` is an adapter's "package.module:Class"."""

    framework: str
    device: str
    mode: str

    def load(self) -> Framework:
        """Return the framework on this device, in this mode."""
        return load(self.framework, self.device, self.mode)


@dataclass(frozen=True)
class ResumeTask(FrameworkTask):
    """A run to restore, and the windows to train it on."""

    model: Model
    recipe: Recipe
    saved: Path
    windows: tuple[Window, ...]

    def run(self) -> list[dict[str, Array]]:
        """Return the run's state right after the load, and after each window."""
        trainer = self.load().trainer(self.model, self.recipe)
        trainer.restore(self.saved)
        states = [trainer.state()]
        for window in self.windows:
            trainer.update(window)
            states.append(trainer.state())
        return states


@dataclass(frozen=True)
class PeakTask(FrameworkTask):
    """A run whose memory peak is measured, and the window of its updates."""

    model: Model
    recipe: Recipe
    window: Window

    def run(self) -> int:
        """Return the allocator's peak after two updates, in bytes."""
        trainer = self.load().trainer(self.model, self.recipe)
        for _ in range(2):
            trainer.update(self.window)
        return trainer.peak_bytes()


@dataclass(frozen=True)
class PredictTask(FrameworkTask):
    """A quantized model, made from other weights and then restored, and samples for it."""

    technique: str
    model: Model
    weights: dict[str, Array]
    calibration: tuple[Array, ...]
    saved: Path
    samples: Array

    def run(self) -> dict[str, Array]:
        """Return the predictions of the restored model."""
        post_training = self.load().rule(PostTraining)
        quantized = post_training.quantize(self.technique, self.model, self.weights, self.calibration)
        quantized.restore(self.saved)
        return quantized.predict(self.samples)


def peak_bytes(subject: Subject, model: Model, recipe: Recipe, window: Window, path: Path) -> int:
    """Run a `PeakTask` in a new process with the same framework, device, mode and seed; return the peak in bytes.

    Args:
        path: two files are written next to it.
    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    task = PeakTask(*same_framework(subject), model, subject.complete_recipe(recipe), window)
    return int(run_in_new_process(task, path))


def same_framework(subject: Subject) -> tuple[str, str, str]:
    """Return path, device and mode with which `frameworks.registry.load` loads the subject's framework again."""
    framework, its_class = subject.framework, type(subject.framework)
    return f"{its_class.__module__}:{its_class.__qualname__}", framework.device, framework.mode


def run_in_new_process(task: Runnable, path: Path) -> Any:
    """Run a task in a new process and return its result.

    Args:
        path: two files are written next to it.
    Raises:
        RuntimeError: the process failed; the message is the end of what it wrote.
    """
    completed = end_process(task, path)
    if completed.returncode:
        raise RuntimeError(f"the new process ended with {completed.returncode}: {completed.stderr[-1000:]}")
    return pickle.loads(path.with_name(f"{path.name}.result").read_bytes())


def end_process(task: Runnable, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a task in a new process and return the process's end, however it ended.

    Args:
        path: two files are written next to it.
    """
    task_file, result = path.with_name(f"{path.name}.task"), path.with_name(f"{path.name}.result")
    task_file.write_bytes(pickle.dumps(task))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-m", "conformance.checks.subprocesses", str(task_file), str(result)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


if __name__ == "__main__":
    requested: Runnable = pickle.loads(Path(sys.argv[1]).read_bytes())
    Path(sys.argv[2]).write_bytes(pickle.dumps(requested.run()))
