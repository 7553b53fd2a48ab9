"""A copy of the checkout to sweep from, and sweeps that are started in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.sweep.supervision import MARKER
from results.record.reading import load
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY, here, offline, write_wheel

ROOT = Path(__file__).parents[3]
_PARTS = ("conformance", "fixtures", "frameworks", "results", "tools", "locks")
_FILES = ("conftest.py", "pyproject.toml")


@dataclass(frozen=True)
class SweptCheckout:
    """A copy of the checkout in a folder, with wheels of a toy framework.

    Attributes:
        folder: has the copy, the wheels, the plan, the sweeps and their temporary directory.
        variables: of every process, next to this one's.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The copy."""
        return self.folder / "suite"

    @property
    def temporary(self) -> Path:
        """The temporary directory of the sweeps."""
        return self.folder / "tmp"

    def make(self, versions: Sequence[str], plan: str) -> None:
        """Copies the checkout, and writes a wheel for each version of the toy and the plan, whose TOY stands for it."""
        self.temporary.mkdir()
        left_out = shutil.ignore_patterns("__pycache__", "cache", "records")
        for part in _PARTS:
            shutil.copytree(ROOT / part, self.root / part, ignore=left_out)
        for name in _FILES:
            shutil.copy(ROOT / name, self.root / name)
        for version in versions:
            write_wheel(self.folder / "wheels", PACKAGE, version)
        (self.folder / "plan.toml").write_text(plan.replace("TOY", TOY), encoding="utf-8")

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a sweep's processes: pip and uv see the wheels alone, and the cache is the sweep's own."""
        own = {"CONFORMANCE_CACHE": str(self.folder / f"{name}-cache"), "TMPDIR": str(self.temporary)}
        return {**offline(self.folder / "wheels"), **own, "PYTHONDONTWRITEBYTECODE": "1", **self.variables}

    @contextmanager
    def sweeping(self, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A sweep of the plan in the folder `name`, with a cache of its own; its output goes to NAME.log."""
        command = [sys.executable, "-m", "conformance", "sweep", str(self.folder / "plan.toml")]
        command += [f"--folder={self.folder / name}", f"--suite-from={here()}", "--workers=1", *words]
        environment = {**os.environ, **self.environment(name)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.root, env=environment, stdout=log, stderr=log)
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def journal(self, name: str) -> list[dict[str, Any]]:
        """The lines of a sweep's journal; none before it has one."""
        try:
            lines = (self.folder / name / "journal.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def kinds(self, name: str) -> dict[str, int]:
        """How many lines of each kind a journal has: "begun", "ended"."""
        return dict(Counter(str(line["kind"]) for line in self.journal(name)))

    def processes(self, word: str = "") -> int:
        """How many processes of cells of these sweeps are alive, whose command has a word."""
        return sum(
            f"{MARKER}=".encode() in values and str(self.folder).encode() in values and word in words
            for _, words, values in processes()
        )

    def verdicts(self, name: str) -> dict[str, dict[str, tuple[str, str]]]:
        """By the record of each cell, outcome and message of each test."""
        result = {}
        for path in sorted((self.folder / name / "records").glob("*.json.gz")):
            verdicts = load(path).verdicts
            result[path.name] = {each.test: (str(each.outcome), each.message) for each in verdicts}
        return result


def processes() -> Iterator[tuple[int, str, bytes]]:
    """Id, command and environment of each process that can be read."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                yield int(name), words, Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue
