"""Shared code of benchmarks: committed samples with their provenance, tables, and the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from frameworks.base import processor
from frameworks.contract import MissingDevice
from frameworks.installer import install
from frameworks.registry import UnknownFramework
from results.record.files import RecordError
from tools.docs import generate

T = TypeVar("T")

TICK_NS = 100
"""Length of a tick in nanoseconds; times are stored in ticks."""


def machine() -> str:
    """Processor, cores and versions in one line."""
    packages = ", ".join(f"{package} {version(package)}" for package in ("numpy", "autograd"))
    return f"{processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, {packages}"


@dataclass(frozen=True)
class Origin:
    """Provenance of samples.

    Attributes:
        place: device and mode.
        machine: processor, cores and library versions.
        started: ISO 8601.
    """

    framework: str
    version: str
    place: str
    machine: str
    started: str

    @property
    def label(self) -> str:
        """Framework, version and place, for tables."""
        return f"{self.framework} {self.version}, {self.place}"


@dataclass(frozen=True)
class Store(Generic[T]):
    """The committed samples of one benchmark: a JSON file for each framework, with readable diffs.

    Attributes:
        folder: folder of the files.
        kind: class of a file's content.
        rows: the field whose items are written one in a line.
    """

    folder: Path
    kind: type[T]
    rows: str

    def path(self, name: str) -> Path:
        """The file of that name."""
        return self.folder / f"{name}.json"

    def save(self, samples: T, name: str) -> None:
        """Writes a file, with the rows last."""
        document: dict[str, Any] = msgspec.to_builtins(samples)
        rows = document.pop(self.rows)
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(f'{json.dumps(document)[:-1]}, "{self.rows}": [\n{lines}\n]}}\n', "utf-8")

    def load(self, name: str) -> T:
        """Reads a file.

        Raises:
            ValueError: it has no valid samples; the message names it.
            OSError: it cannot be read.
        """
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=self.kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}.json has no valid samples: {error}") from error

    def all(self) -> list[T]:
        """Every file's samples, by name.

        Raises:
            ValueError: a file has no valid samples.
            OSError: it cannot be read.
        """
        return [self.load(path.stem) for path in sorted(self.folder.glob("*.json"))]


def parser(name: str, purpose: str) -> argparse.ArgumentParser:
    """The options of `python -m tools NAME`: an optional framework, and its device."""
    made = argparse.ArgumentParser(prog=f"python -m tools {name}", description=purpose)
    made.add_argument("framework", nargs="?", help="framework to measure; without it, only fill the page")
    made.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda")
    return made


def installed(framework: str) -> None:
    """Installs a framework of the suite.

    Raises:
        ValueError: it cannot be installed.
    """
    if framework in install.DISTRIBUTIONS and install.main([framework]):
        raise ValueError(f"{framework} cannot be installed")


def run(options: argparse.Namespace, measure: Callable[[argparse.Namespace], Sequence[str]], block: str) -> int:
    """Measures the named framework, if any, prints a generated block, and writes it into its page.

    Args:
        measure: measures and stores samples; returns a line for each result beyond its limit.

    Returns:
        0; 1 if a result is beyond its limit, with one line each; 2, with one line, if it cannot be measured, read or
        written.
    """
    try:
        problems = measure(options) if options.framework else ()
        texts = generate.texts([block])
        print(texts[block])
        generate.place(texts)
    except (OSError, ValueError, LookupError, UnknownFramework, MissingDevice, RecordError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
