"""Checkpoints of older versions: a program for each library, and what it wrote with each version.

    python -P conformance/checks/checkpoints.py write PROGRAM FOLDER     FOLDER/LIBRARY-VERSION.zip
    python -P conformance/checks/checkpoints.py resume PROGRAM FOLDER    goes on from an unpacked one

A program is `frameworks/FRAMEWORK/checkpoints/[MODE/]LIBRARY.py`, and LIBRARY is its distribution, with underscores. It
imports the library alone and has FORMS, the names of its ways to save, and `train(folder, form, *, writes)`, which
saves after two updates, or loads into a run of other weights, and returns numbers by name after two more. This file
needs nothing but Python, so that every old version can write.
"""

import json
import re
import runpy
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
"""Time limit of a program, in seconds."""
ROUNDING = 2.0**-16
"""Largest relative difference that is rounding: 256 roundings of float32, more than two updates make."""
VALUES, RESUMED = "values.json", "resumed.json"

_COMPUTING = ("torch", "tensorflow-cpu", "jax", "flax", "optax", "numpy", "accelerate", "safetensors", "h5py")
_SLIPS = ("KeyError", "AttributeError", "IndexError", "NameError", "UnboundLocalError", "AssertionError")
_NAMES_A_REASON = re.compile(r"versions?\b|format|older|newer|deprecat|no longer", re.IGNORECASE)


@dataclass(frozen=True)
class SavedRun:
    """A committed checkpoint, and the program that resumes it."""

    program: Path
    archive: Path

    def __str__(self) -> str:
        return self.archive.name.removesuffix(".zip")

    def resume(self, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the numbers of the run that went on with the old version, and what came of resuming it, by form.

        A form that raised has the text "TypeError: message" in place of its numbers.

        Args:
            folder: an empty one, into which the checkpoint is unpacked.
        Raises:
            RuntimeError: the program failed outside its forms; the message is the end of what it wrote.
        """
        with zipfile.ZipFile(self.archive) as archive:
            archive.extractall(folder)
        command = [sys.executable, "-P", __file__, "resume", str(self.program), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.program.name} ended with {done.returncode}: {done.stderr[-1000:]}")
        values, resumed = (json.loads((folder / name).read_text("utf-8")) for name in (VALUES, RESUMED))
        return values, resumed


def saved_runs(framework: str, mode: str, default_mode: str, root: Path = ROOT) -> list[SavedRun]:
    """Return the checkpoints that a mode judges: of installed libraries, and of no version after the installed one."""
    from packaging.version import Version

    folder, result = root / "frameworks" / framework / "checkpoints", []
    for program in sorted(folder.rglob("*.py")):
        if mode != (default_mode if program.parent == folder else program.parent.name):
            continue
        try:
            installed = Version(metadata.version(program.stem))
        except metadata.PackageNotFoundError:
            continue
        archives = {Version(path.stem.partition("-")[2]): path for path in program.parent.glob(f"{program.stem}-*.zip")}
        result += [SavedRun(program, archives[version]) for version in sorted(archives) if version <= installed]
    return result


def find_difference(resumed: Mapping[str, list[float]], values: Mapping[str, list[float]]) -> str:
    """Return the first number that differs by more than rounding, as "NAME: got X, want Y"; "" for none."""
    for name, wanted in values.items():
        got, largest = resumed.get(name, []), max(map(abs, wanted), default=0.0)
        if len(got) != len(wanted):
            return f"{name}: got {len(got)} numbers, want {len(wanted)}"
        for x, y in zip(got, wanted, strict=True):
            if not abs(x - y) <= ROUNDING * largest:
                return f"{name}: got {x:.9g}, want {y:.9g}"
    return ""


def is_clear(refusal: str) -> bool:
    """Return whether an exception, "Type: message", names a version or a format, and is of no kind of slips."""
    from conformance.checks.evidence import clean_message

    kind, _, message = refusal.partition(": ")
    return kind not in _SLIPS and bool(_NAMES_A_REASON.search(clean_message(message)))


def write(program: Path, folder: Path) -> Path:
    """Train by each form of a program, and pack what it saved; return the path of the archive."""
    functions = runpy.run_path(str(program))
    version = metadata.version(program.stem).partition("+")[0]
    with tempfile.TemporaryDirectory() as temporary:
        saved, values = Path(temporary), {}
        for form in functions["FORMS"]:
            (saved / form).mkdir()
            values[form] = functions["train"](saved / form, form, writes=True)
        (saved / VALUES).write_text(json.dumps(values), "utf-8")
        installed = {part.name: part.version for part in metadata.distributions() if part.name in _COMPUTING}
        (saved / "versions.json").write_text(json.dumps(installed), "utf-8")
        with zipfile.ZipFile(folder / f"{program.stem}-{version}.zip", "w") as archive:
            for path in sorted(path for path in saved.rglob("*") if path.is_file()):
                information = zipfile.ZipInfo(path.relative_to(saved).as_posix())  # of 1980
                archive.writestr(information, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return Path(archive.filename or "")


def resume(program: Path, folder: Path) -> Path:
    """Go on by each form of an unpacked checkpoint; return the path of the numbers, or of the exception, by form."""
    functions, resumed = runpy.run_path(str(program)), {}
    for form in json.loads((folder / VALUES).read_text("utf-8")):
        try:
            resumed[form] = functions["train"](folder / form, form, writes=False)
        except BaseException as error:  # that of torch.distributed.checkpoint is no Exception
            resumed[form] = f"{type(error).__name__}: {error}"
    (folder / RESUMED).write_text(json.dumps(resumed), "utf-8")
    return folder / RESUMED


if __name__ == "__main__":
    print({"write": write, "resume": resume}[sys.argv[1]](*map(Path, sys.argv[2:])))
