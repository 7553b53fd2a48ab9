"""A cell: an environment of its own, one run of the suite, one record; nothing outlives it."""

import gzip
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.sweep import cell as module
from conformance.sweep.cell import (
    CellFolder,
    CellRequest,
    CommandEnd,
    Commands,
    LostCell,
    NotJudged,
    Requirements,
    finished,
    make_environment,
    run_cell,
)
from conformance.sweep.plan import SweepCell, SweepPlan
from results.record.model import Outcome
from results.record.reading import from_json
from tests.support.suite_runs import ROOT, running, wait_for
from tests.support.wheels import PACKAGE, TOY, here, offline, write_wheel

PLAN = SweepPlan(
    "toy", (), ("-k", "test_skipped_update_keeps_average or test_overflow_can_be_discarded"), workers=1, repeat=False
)
SKIP = "scaling.skip-is-atomic"
SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of the toy, the only index; 4.0 has a fault, and 7.0 cannot be imported."""
    write_wheel(tmp_path / "wheels", PACKAGE, "4.0")
    write_wheel(tmp_path / "wheels", PACKAGE, "7.0", source="raise ImportError('cannot load /opt/x/libtoy.so')")
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CONFORMANCE_SUITE_PACKAGES", here())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "wheels"


def cell(version: str) -> SweepCell:
    """A cell of the toy."""
    return SweepCell(TOY, version, PACKAGE, version, "2026-01-01", mode="emulated")


def request(version: str) -> CellRequest:
    """The request to judge a cell of the toy."""
    return CellRequest(cell(version), PLAN, path=str(ROOT))


def test_run_cell_of_a_wheel_gives_the_record_of_its_version(wheels: Path, tmp_path: Path) -> None:
    result = run_cell(request("4.0"))
    assert (result.outcome, result.reason) == ("judged", "")
    record = from_json(gzip.decompress(result.record))
    assert (record.variant.framework_version, record.variant.packages[PACKAGE]) == ("4.0", "4.0")
    assert (record.status, record.selection, len(record.verdicts)) == ("partial", " ".join(PLAN.selection), 4)
    assert {verdict.outcome for verdict in record.verdicts if verdict.clause == SKIP} == {Outcome.FAIL}
    folder = CellFolder(tmp_path / "sweep", PLAN)
    folder.store(cell("4.0"), result)
    assert folder.is_done(cell("4.0"))
    path = folder.record(cell("4.0"))
    assert finished(path, SweepPlan("toy", (), ("-k", "other"))) is None
    assert finished(path, SweepPlan("toy", (), PLAN.selection, seed=1)) is None
    path.write_bytes(path.read_bytes()[:100])
    assert not folder.is_done(cell("4.0"))
    assert [*(wheels.parent / "tmp").iterdir()] == []


@pytest.mark.parametrize(
    ("version", "outcome", "reason"),
    [
        ("7.0", "import failed", "ImportError: cannot load <path>"),
        ("8.0", "no solution", f"No matching distribution found for {PACKAGE}==8.0"),
    ],
)
@pytest.mark.usefixtures("wheels")
def test_run_cell_of_a_broken_version_has_a_reason(version: str, outcome: str, reason: str) -> None:
    result = run_cell(request(version))
    assert (result.outcome, result.record) == (outcome, b"")
    assert reason in result.reason
    assert result.log


@pytest.mark.parametrize(
    ("ended", "outcome", "reason"),
    [
        (CommandEnd(None, "..."), "out of time", "the suite took more than 1800 s"),
        (CommandEnd(-signal.SIGSEGV, "x\nlast\n"), "crash", "pytest ended with SIGSEGV: last"),
        (CommandEnd(5, "no tests ran"), "crash", "pytest ended with status 5: no tests ran"),
        (CommandEnd(0, "3 passed"), "crash", "pytest ended with status 0: 3 passed"),
    ],
)
def test_run_cell_without_a_record_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, ended: CommandEnd, outcome: str, reason: str
) -> None:
    commands = Commands()
    monkeypatch.setattr(commands, "run", lambda *_: ended)
    result = run_cell(CellRequest(SweepCell("reference", "", "", "1"), PLAN), commands)
    assert (result.outcome, result.reason, result.log) == (outcome, reason, ended.output)


def test_run_cell_environment_is_that_of_tox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    seen: list[Any] = []
    commands = Commands()
    monkeypatch.setattr(commands, "run", lambda *given: seen.append(given) or CommandEnd(2, ""))
    run_cell(CellRequest(SweepCell("reference", "", "", "1", mode="ranks", ways=("a.b",)), PLAN), commands)
    ((argv, _, _, variables),) = seen
    assert {"RAY_JOB_ID", "PYTHONPATH"}.isdisjoint(variables)
    assert (variables["OMP_NUM_THREADS"], variables["CUDA_VISIBLE_DEVICES"]) == ("1", "3")
    assert argv[:2] == [sys.executable, "-m"]
    assert {"--framework=reference", "--mode=ranks", "--way=a.b", "--numprocesses=1", "--seed=0"} <= {*argv}


WANTED = Requirements(("torch==2.6.0",), ("https://x",), "2026-01-01T00:00:00Z", ("numpy",))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Makes an environment with installers that succeed or not; returns their commands without those that make it."""

    def attempt(folder: Path, succeeds: Callable[[list[str]], bool]) -> list[list[str]]:
        installs: list[list[str]] = []
        commands = Commands()

        def run(argv: list[str], *_: object) -> CommandEnd:
            if "venv" in argv:
                return CommandEnd(0, "")
            installs.append(argv)
            return CommandEnd(0, "") if succeeds(argv) else CommandEnd(1, "ERROR: No matching distribution found for x")

        monkeypatch.setattr(commands, "run", run)
        monkeypatch.delenv("CONFORMANCE_SUITE_PACKAGES", raising=False)
        try:
            make_environment(folder / "environment", WANTED, commands)
        finally:
            result.append(installs)
        return installs

    result: list[list[list[str]]] = []
    return attempt


def test_make_environment_uv_installs_versions_of_the_time(tmp_path: Path, attempts: Any) -> None:
    (install,) = attempts(tmp_path, lambda _: True)
    assert install[1:3] == ["pip", "install"]
    assert install[install.index("--exclude-newer") + 1] == WANTED.before
    assert any(word.startswith("--exclude-newer-package=numpy=") for word in install)
    assert install[-3:] == ["--constraint", str(module.SUITE_LOCK), "torch==2.6.0"]


def test_make_environment_pip_is_the_fallback(tmp_path: Path, attempts: Any) -> None:
    installs = attempts(tmp_path, lambda argv: "--extra-index-url" in argv and "--constraint" not in argv)
    assert ["--constraint" in argv for argv in installs] == [True, False, True, False]
    assert installs[-1][:4] == [str(tmp_path / "environment" / "bin" / "python"), "-m", "pip", "install"]
    with pytest.raises(NotJudged) as refused:
        attempts(tmp_path, lambda _: False)
    assert refused.value.args[:2] == ("no solution", "No matching distribution found for x")


def alive(marker: str) -> int:
    """Processes whose command has a word."""
    listed = subprocess.run(["pgrep", "-fc", marker], capture_output=True, text=True, check=False)
    return int(listed.stdout)


@pytest.mark.parametrize("stubborn", [False, True])
def test_commands_run_past_the_limit_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    program = f"# {tmp_path}\n{STUBBORN if stubborn else ''}{SLEEPER}print('begun', flush=True); time.sleep(600)"
    ended = Commands().run([sys.executable, "-c", program], tmp_path / "log", 3.0, os.environ)
    assert (ended.status, ended.last_line) == (None, "begun")
    assert alive(str(tmp_path)) == 0


def test_commands_close_ends_what_runs_and_lets_nothing_begin(tmp_path: Path) -> None:
    commands, lost = Commands(), []

    def run() -> None:
        try:
            commands.run([sys.executable, "-c", f"# {tmp_path}\n{SLEEPER}time.sleep(600)"], tmp_path / "log", 600, {})
        except LostCell as error:
            lost.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: alive(str(tmp_path)) > 0)
    begun = time.monotonic()
    commands.close()
    thread.join()
    assert time.monotonic() - begun < 30
    assert lost == ["the sweep has ended"]
    assert alive(str(tmp_path)) == 0
    with pytest.raises(LostCell):
        commands.run([sys.executable], tmp_path / "log", 1, {})


def test_commands_of_a_killed_process_end(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from conformance.sweep.cell import Commands
argv = [sys.executable, "-c", "# {tmp_path}" + chr(10) + "import time; time.sleep(600)"]
Commands().run(argv, Path({str(tmp_path / "log")!r}), 600, os.environ)
"""
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    marker = f"# {tmp_path}"
    environment = {"PYTHONPATH": str(ROOT)}
    with running([sys.executable, str(tmp_path / "program.py")], ROOT, tmp_path / "out", **environment) as process:
        wait_for(lambda: alive(marker) == 1)
        process.kill()
    wait_for(lambda: alive(marker) == 0)
