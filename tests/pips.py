"""A pip that installs nothing: in the place of `subprocess.run` it notes what it is asked, and answers as pip would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REAL_RUN = subprocess.run

NUMPY, OLDER = "numpy==2.4.6", "numpy==2.3.5"
SUITE = {"numpy": "2.4.6", "scipy": "1.17.1"}
LOCKS = {
    "suite": SUITE,
    "torch": SUITE | {"torch": "2.13.0", "sympy": "1.14.0"},
    "tf": SUITE | {"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1"},
    "paddle": SUITE | {"paddlepaddle": "3.3.1", "numpy": "2.3.5", "setuptools": "84.2.1"},
    "jax": SUITE | {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "orbax-checkpoint": "0.12.8"},
    "frameworks": SUITE | {"torch": "2.13.0", "jax": "0.10.2", "numpy": "2.3.5"},
}
JAX = ["flax", "optax", "jmp", "orbax-checkpoint"]


@dataclass
class Asked:
    """One call of pip.

    Attributes:
        words: those after "pip", without the interpreter and the names of the files of constraints and of the report.
        pins: the lines of the constraints.
        environment: the variables that pip was given; None: those of this process.
    """

    words: list[str]
    pins: list[str]
    environment: Mapping[str, str] | None = None


@dataclass
class Pip:
    """Answers calls of pip; every other command is run.

    Attributes:
        status, errors, output: how `pip install` ends.
        resolved: what `pip install --dry-run` would install: version and declared requirements by name.
        uploads: by package, the day on which each version was uploaded.
        dated: whether the index gives upload dates.
        settings: what `pip config list` prints.
        refused: whether a call of `pip install` finds no solution.
    """

    status: int = 0
    errors: str = ""
    output: str = ""
    resolved: dict[str, tuple[str, Sequence[str]]] = field(default_factory=dict)
    uploads: dict[str, dict[str, str]] = field(default_factory=dict)
    dated: bool = True
    settings: str = ""
    refused: Callable[[Asked], bool] = lambda _: False
    calls: list[Asked] = field(default_factory=list)

    def __call__(self, words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if words[:3] != [sys.executable, "-m", "pip"]:
            return REAL_RUN(words, **options)  # type: ignore[call-overload]
        asked, report = self._read(words[3:], options.get("env"))
        if asked.words[0] == "config":
            return subprocess.CompletedProcess(words, 0, self.settings, "")
        self.calls.append(asked)
        if "--uploaded-prior-to" in asked.words and not self.dated:
            return subprocess.CompletedProcess(words, 1, "", "ERROR: X does not provide upload-time metadata.\n")
        if asked.words[0] == "index":
            return self._listed(words, asked.words)
        if self.refused(asked):
            return subprocess.CompletedProcess(words, 1, "", "ERROR: No matching distribution found for x==1\n")
        if report and not self.status:
            items = [
                {"metadata": {"name": name, "version": version, "requires_dist": list(requires)}}
                for name, (version, requires) in self.resolved.items()
            ]
            report.write_text(json.dumps({"install": items}))
        return subprocess.CompletedProcess(words, self.status, self.output, self.errors)

    @property
    def installed(self) -> Asked:
        """The only call that installs something."""
        (call,) = [call for call in self.calls if call.words[0] == "install" and "--dry-run" not in call.words]
        return call

    @property
    def resolving(self) -> Asked:
        """The last call that looks what would be installed."""
        return [call for call in self.calls if "--dry-run" in call.words][-1]

    @staticmethod
    def _read(words: list[str], environment: object) -> tuple[Asked, Path | None]:
        rest, pins, report = words[2:] if words[0] == "--python" else list(words), [], None
        if "--constraint" in rest:
            at = rest.index("--constraint")
            pins = Path(rest[at + 1]).read_text().splitlines()
            del rest[at : at + 2]
        if "--report" in rest:
            at = rest.index("--report")
            report = Path(rest.pop(at + 1))
        return Asked(rest, pins, environment if isinstance(environment, dict) else None), report

    def _listed(self, words: list[str], asked: list[str]) -> subprocess.CompletedProcess[str]:
        before = asked[asked.index("--uploaded-prior-to") + 1] if "--uploaded-prior-to" in asked else "9999"
        package = asked[-1]
        there = [version for version, day in self.uploads.get(package, {}).items() if f"{day}T00:00:00Z" < before]
        if not there:
            return subprocess.CompletedProcess(words, 1, "", f"ERROR: No matching distribution found for {package}\n")
        return subprocess.CompletedProcess(words, 0, json.dumps({"name": package, "versions": there}), "")
