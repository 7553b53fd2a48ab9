"""Runs of the suite's commands in this and in other processes, and small copies of the checkout to run them in."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from conformance.cli import main
from frameworks.registry import built_in
from results.record.model import Outcome, Record

ROOT = Path(__file__).parents[2]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
WORKERS, TIMEOUTS = ("-p", "xdist.plugin"), ("-p", "pytest_timeout")
"""Arguments that load a plugin of pytest; these runs load no plugin without them."""
_OMITTED = shutil.ignore_patterns("cache", "records", "baselines", "sweeps", *(built_in().keys() - {"reference"}))
_CONFTEST = """
from conformance.runner import identity

identity.suite_areas = dict  # half of the time of such a run
"""
_HEAD = """
import json, os, signal, tempfile, time, warnings
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.checks.api import Subject, Verdict, clause
from fixtures.models import scalar
from fixtures.recipe import DynamicScaling, Recipe, Steps
"""
"""Imports of the suites of a small checkout."""

_STARTER = """
import gc, json, os, random, runpy, sys, tempfile
import autograd, click, execnet, hypothesis, ml_dtypes, msgspec, numpy, packaging.version, pytest, rich.console
import scipy.special, scipy.stats
gc.freeze()
for line in sys.stdin:
    request = json.loads(line)
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for descriptor, path in enumerate((os.devnull, *request["streams"])):
    os.dup2(os.open(path, os.O_RDWR), descriptor)
os.chdir(request["root"])
os.environ.clear()
os.environ.update(request["environment"])
sys.path[0], tempfile.tempdir = request["root"], None
random.seed()
numpy.random.seed()
sys.argv = request["argv"]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""A process that imports what most commands import, and forks for each."""


@dataclass(frozen=True)
class CommandResult:
    """Exit status and output of a command."""

    status: int
    output: str
    errors: str

    @property
    def lines(self) -> list[str]:
        """Everything that it printed, without empty lines."""
        return [line for line in f"{self.output}\n{self.errors}".splitlines() if line.strip()]


def hang_limit(seconds: float = 300.0) -> float:
    """Seconds after which something counts as hung: `seconds` on a quiet machine, more where its processors are shared.

    CONFORMANCE_PATIENCE multiplies it, for a slow machine.
    """
    crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.0, crowd) * float(os.environ.get("CONFORMANCE_PATIENCE", "1"))


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without the variables of pytest and the suite's user."""
    prefixes = ("PYTEST_", "CONFORMANCE_", "GITHUB_ACTIONS")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**inherited, **ONE_THREAD, "COLUMNS": "160", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **changes}


def command(*arguments: str | Path) -> list[str]:
    """The command that runs the suites on the CPU."""
    return [sys.executable, "-m", "pytest", "-q", "--device=cpu", *map(str, arguments)]


@cache
def _starter() -> subprocess.Popen[str]:
    pipe, argv = subprocess.PIPE, [sys.executable, "-c", _STARTER]
    process = subprocess.Popen(argv, env=environment(), stdin=pipe, stdout=pipe, text=True)
    atexit.register(process.communicate)
    return process


def run(argv: list[str], root: Path = ROOT, **changes: str) -> CommandResult:
    """Runs a command to its end; a module of Python runs in a fork of a preloaded process."""
    variables = environment(**changes)
    if argv[:2] != [sys.executable, "-m"] or any(name.startswith("PYTHON") for name in changes):
        completed = subprocess.run(argv, cwd=root, env=variables, capture_output=True, text=True, timeout=hang_limit())
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)
    process = _starter()
    assert process.stdin is not None
    assert process.stdout is not None
    with tempfile.NamedTemporaryFile("r+") as output, tempfile.NamedTemporaryFile("r+") as errors:
        request = {"root": str(root), "argv": argv[2:], "streams": [output.name, errors.name], "environment": variables}
        print(json.dumps(request), file=process.stdin, flush=True)
        status = int(process.stdout.readline())
        return CommandResult(status, output.read(), errors.read())


def conformance(*arguments: str | Path, root: Path = ROOT, **changes: str) -> CommandResult:
    """Runs the command `conformance`, which loads plugins of pytest by itself."""
    command = [sys.executable, "-m", "conformance", *map(str, arguments)]
    return run(command, root, **{"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", **changes})


def call_command(*arguments: str | Path) -> CommandResult:
    """Calls the command `conformance` in this process."""
    output, errors = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.setenv("COLUMNS", "160")
        status = main([*map(str, arguments)])
    return CommandResult(status, output.getvalue(), errors.getvalue())


def run_refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which the command, called in this process, refuses these arguments."""
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    return line


def assert_refused(result: CommandResult, path: Path) -> None:
    """Asserts that a command printed one line only, an error that names this file."""
    assert (result.status, result.output) == (2, "")
    assert result.errors.endswith("\n")
    assert result.errors[:-1].isprintable(), result.errors
    assert str(path) in result.errors


def judge(*arguments: str | Path, root: Path = ROOT, **changes: str) -> CommandResult:
    """Runs the suites of a checkout to their end."""
    return run(command(*arguments), root, **changes)


def reset_signal_handlers() -> None:
    """Resets the signals that shells ignore in background processes and under nohup."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def running(argv: list[str], root: Path, log: Path, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running command that obeys signals and prints into `log`; it is killed at the end."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=root, env=environment(**changes), stdout=file, stderr=file, preexec_fn=reset_signal_handlers
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def copy_checkout(folder: Path, **suite: str) -> Path:
    """A copy of the checkout, without adapters but the reference, in which these are the only suites (name: source)."""
    for part in ("conformance", "fixtures", "frameworks", "results", "tests/support"):
        shutil.copytree(ROOT / part, folder / part, ignore=_OMITTED)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text("utf-8") + _CONFTEST, "utf-8")
    for path in (folder / "conformance" / "suites").rglob("test_*.py"):
        path.unlink()
    for name, source in suite.items():
        (folder / "conformance" / "suites" / f"test_{name}.py").write_text(_HEAD + source, encoding="utf-8")
    return folder


def write_expectations(root: Path, *entries: tuple[str, str], spoiling: bool = False) -> None:
    """Writes known failures of the reference into a copy of the checkout.

    Args:
        entries: test and signature of each.
        spoiling: whether they spoil the process for later tests.
    """
    text = "".join(
        f'[[finding]]\nid = "f{number}"\nclass = "documented"\nconsequence = "error"\n'
        f'reason = "It does."\nlink = "https://example.org/1"\nlink_shows = "That it does."\n'
        f"spoils_process = {str(spoiling).lower()}\n"
        for number in range(len(entries))
    )
    lines = "".join(f"{test}  f{number}  {signature}\n" for number, (test, signature) in enumerate(entries))
    snapshots = root / "frameworks" / "reference" / "expected"
    snapshots.mkdir(exist_ok=True)
    (snapshots / "reference-1-cpu-emulated.txt").write_text(lines, encoding="utf-8")
    (snapshots.parent / "findings.toml").write_text(text, encoding="utf-8")


def outcomes(record: Record, clause: str) -> list[Outcome]:
    """The outcomes of a clause's verdicts."""
    return [verdict.outcome for verdict in record.verdicts if verdict.clause == clause]


def outcomes_by_case(record: Record) -> dict[str, Outcome]:
    """Outcome of every verdict by its case."""
    return {verdict.case: verdict.outcome for verdict in record.verdicts}


def clauses_of(record: Record, selected: Collection[Outcome]) -> set[str]:
    """Clauses with at least one verdict of these outcomes."""
    return {verdict.clause for verdict in record.verdicts if verdict.outcome in selected}


def has_ended(pid: int) -> bool:
    """Whether a process has ended, also if its parent has not waited for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return Path("/proc").is_dir()


def assert_ended(pids: Sequence[int]) -> None:
    """Waits for the processes to end.

    Raises:
        TimeoutError: one of them is still running after `hang_limit`.
    """
    wait_for(lambda: all(map(has_ended, pids)))


def wait_for(condition: Callable[[], bool]) -> None:
    """Returns as soon as the condition holds.

    Raises:
        TimeoutError: it does not hold within `hang_limit`.
    """
    limit = hang_limit()
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition does not hold after {limit:g} s")
        time.sleep(0.02)
