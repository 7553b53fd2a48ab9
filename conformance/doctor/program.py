"""Imports a framework and uses its device, one step after the other, in a separate process.

    python -m conformance.doctor.program NAME DEVICE ASKED [STEP ...]

DEVICE is "cpu" or "cuda"; ASKED is what the adapter gets, such as "auto". Writes a JSON line when a step begins, and
one when it ends. What the framework itself prints goes to stderr. Steps that need an adapter's `doctor.py`
(`DoctorProgram`) are left out where it has none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from fixtures.arrays import Array
from frameworks.adapter_file import adapter_file, folder_of
from frameworks.registry import load, path_of

FILE = "doctor.py"
"""Name of an adapter's part: a module that imports the framework alone, with the functions of `DoctorProgram`."""

SIZE = 64
"""Rows of the matrices that are multiplied."""


class DoctorProgram(Protocol):
    """The framework's own calls; `device` is "cpu" or "cuda"."""

    def version(self) -> str:
        """The framework's version."""

    def gpus(self) -> int:
        """Number of NVIDIA GPUs that the framework can use."""

    def product(self, device: str, left: Array, right: Array) -> Array:
        """Matrix product on a device."""

    def timed(self, device: str, left: Array, right: Array) -> float:
        """Seconds of such a product, by the device's events where the framework has them."""


class StepFailed(Exception):
    """A step's result is wrong; the message says how."""


def file_of(name: str) -> Path | None:
    """The adapter's `doctor.py`, None if it has none."""
    folder = folder_of(path_of(name))
    path = folder / FILE if folder is not None else None
    return path if path is not None and path.is_file() else None


def main(name: str, device: str, asked: str, wanted: list[str]) -> int:
    """Runs the steps until one fails; returns the exit status."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    calls: list[DoctorProgram] = []
    steps: dict[str, Callable[[], str]] = {"import": lambda: _import(name, calls)}
    if file_of(name) is not None:
        steps["compute"] = lambda: _product(calls[0], "cpu")
    if device == "cuda" and file_of(name) is not None:
        steps["device"] = lambda: _gpus(calls[0])
        steps["memory"] = lambda: _product(calls[0], device)
        steps["timing"] = lambda: _timed(calls[0], device)
        steps["two processes"] = lambda: _second(name, device)
    steps["adapter"] = lambda: _adapter(name, asked)
    for step, work in steps.items():
        if wanted and step not in wanted:
            continue
        print(json.dumps({"step": step}), file=out, flush=True)
        try:
            text = work()
        except Exception as error:
            problem = str(error) if isinstance(error, StepFailed) else f"{type(error).__name__}: {error}"
            print(json.dumps({"step": step, "problem": problem}), file=out, flush=True)
            return 1
        print(json.dumps({"step": step, "text": text}), file=out, flush=True)
    return 0


def _import(name: str, calls: list[DoctorProgram]) -> str:
    begun = time.monotonic()
    path = file_of(name)
    if path is None:
        modules = adapter_file(name).imports[:1]
        for each in modules:
            import_module(each)
        return ", ".join(modules) or "of nothing but the adapter"
    spec = spec_from_file_location("conformance_doctor_program", path)
    if spec is None or spec.loader is None:
        raise StepFailed(f"{path} is no module")
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    calls.append(cast("DoctorProgram", loaded))
    return f"{calls[0].version()} in {time.monotonic() - begun:.1f} s"


def _adapter(name: str, device: str) -> str:
    framework = load(name, device)
    return f"mode {framework.mode} on {framework.device}"


def _matrices() -> tuple[Array, Array]:
    """Matrices of small integers, whose product every format has exactly."""
    numbers = np.arange(SIZE * SIZE).reshape(SIZE, SIZE)
    return (numbers % 3 - 1).astype(np.float32), (numbers % 5 - 2).astype(np.float32)


def _product(calls: DoctorProgram, device: str) -> str:
    left, right = _matrices()
    result, wanted = np.asarray(calls.product(device, left, right)), left @ right
    if result.shape != wanted.shape:
        raise StepFailed(f"product of matrices: got shape {result.shape}, want {wanted.shape}")
    if not np.array_equal(result, wanted):
        place = np.unravel_index(int(np.argmax(np.abs(result - wanted))), wanted.shape)
        where = ", ".join(map(str, map(int, place)))
        raise StepFailed(f"product of matrices: got {result[place]:g}, want {wanted[place]:g} at [{where}]")
    return f"a product of {SIZE} x {SIZE} is right on {device}"


def _gpus(calls: DoctorProgram) -> str:
    count = calls.gpus()
    if not count:
        raise StepFailed("the framework sees no GPU")
    return f"{count} GPU{'s'[: count != 1]}"


def _timed(calls: DoctorProgram, device: str) -> str:
    seconds = calls.timed(device, *_matrices())
    if not seconds > 0:
        raise StepFailed(f"time of a product: got {seconds:g} s, want more than 0")
    return f"a product took {1e6 * seconds:.0f} us"


def _second(name: str, device: str) -> str:
    words = [sys.executable, "-m", "conformance.doctor.program", name, device, device, "import", "memory"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        problem = lines[-1].get("problem") if lines else None
        raise StepFailed(f"a second process, next to this one: {problem or f'ended with status {ended.returncode}'}")
    return "a second process multiplies on the same GPU"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
