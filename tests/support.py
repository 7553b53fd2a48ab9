"""What the tests of the suite share: runs of pytest in a process of its own, and small copies of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from results.model import Record
from results.outcomes import Outcome

ROOT = Path(__file__).parent.parent
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "cache", "records", "baselines", "torch", "tf", "paddle", "jax")


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        """Everything that it printed, without empty lines."""
        return [line for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]


def environment(**changes: str) -> dict[str, str]:
    """This process' environment without what pytest and its plugins put there, one thread a process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CONFORMANCE_"))}
    return {**kept, **THREADS, "COLUMNS": "160", **changes}


def suites(*arguments: str | Path) -> list[str]:
    """The command that runs the suites of a checkout on the CPU."""
    return [sys.executable, "-m", "pytest", "-q", "--device=cpu", *map(str, arguments)]


def judge(*arguments: str | Path, root: Path = ROOT, **changes: str) -> Ended:
    """Runs the suites of a checkout to their end."""
    done = subprocess.run(
        suites(*arguments),
        cwd=root,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def checkout(folder: Path, **suite: str) -> Path:
    """A copy of the checkout, without adapters but the reference, in which these are the only suites (name: source)."""
    for part in ("conformance", "fixtures", "frameworks", "results", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=_LEFT_OUT)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for kind, ending in (("suites", "*.py"), ("expectations", "*.toml")):
        for path in (folder / "conformance" / kind).glob(ending):
            path.unlink()
    for name, source in suite.items():
        (folder / "conformance" / "suites" / f"test_{name}.py").write_text(source, encoding="utf-8")
    return folder


def outcomes(record: Record, clause: str) -> list[Outcome]:
    """Outcomes of every verdict on a clause."""
    return [verdict.outcome for verdict in record.verdicts if verdict.clause == clause]


def by_case(record: Record) -> dict[str, Outcome]:
    """Outcome of every verdict by its case."""
    return {verdict.case: verdict.outcome for verdict in record.verdicts}


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Returns as soon as the condition holds.

    Raises:
        TimeoutError: it never did.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happened for {seconds} seconds")
        time.sleep(0.02)


def clauses_of(record: Record, wanted: Iterable[Outcome]) -> set[str]:
    """Clauses with at least one verdict of these outcomes."""
    return {verdict.clause for verdict in record.verdicts if verdict.outcome in set(wanted)}
