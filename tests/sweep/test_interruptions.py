"""An installer that a signal or the network ends: no refusal is stored, no environment is taken for a whole one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from conformance.sweep import cell_locks, cell_process, environments
from conformance.sweep.cell_locks import CellLocks
from conformance.sweep.cells import SweepCell
from conformance.sweep.environments import EnvironmentCache
from frameworks.installer import pip, resolution, uv
from frameworks.installer.distributions import InstallerInterrupted, Unavailable, check_ended
from frameworks.installer.resolution import EnvironmentRequest, Lock, resolve
from results.record.files import RecordError
from tests.support.suite_runs import ROOT, hang_limit, running, wait_for
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY, here

CELL = SweepCell(TOY, "1.0", PACKAGE, "1.0", mode="emulated")
LOCK = Lock((f"{PACKAGE}==1.0",), {PACKAGE: "1.0"})
ENDING = """
import os, subprocess, sys
from pathlib import Path
from conformance.sweep import supervision

class Left(BaseException):
    pass

def leave(status):
    raise Left

os._exit = leave
supervision.adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
try:
    supervision.end_here(Path(sys.argv[1]))
except Left:
    print(child.wait())
"""
"""A program that ends its cell while it waits for an installer."""

TWO_CELLS = """
[[cells]]
framework = "reference"
versions = ["1"]
modes = ["emulated", "ranks"]
"""
SWEEPING = """
import sys
from conformance.cli import main
from conformance.sweep.launching import CellProcesses

CELL = '''
import select, sys
with open(sys.argv[1], "a") as file:
    file.write("begun ")
    file.flush()
    told = select.select([sys.stdin], [], [], 5.0)[0]
    file.write("told to end " if told else "left alone ")
'''
run = CellProcesses._run
CellProcesses._run = lambda self, _, *others: run(self, [sys.executable, "-c", CELL, sys.argv[1]], *others)
sys.exit(main(["sweep", *sys.argv[2:]]))
"""
"""A sweep whose cells note that they begin, and end when they are told to, or after some seconds."""


@contextmanager
def index(status: int) -> Iterator[str]:
    """The address of a package index that answers every request with a status, of none for 0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/simple"
        if not status:
            server.server_close()
            yield address
            return
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield address
        finally:
            server.shutdown()


def settings(address: str) -> dict[str, str]:
    """Variables by which pip asks this index alone, once, and uv none."""
    ours = {"PIP_INDEX_URL": address, "PIP_RETRIES": "0", "UV_NO_INDEX": "1"}
    return {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", **ours}


@pytest.mark.parametrize(
    ("status", "errors", "how"),
    [(-2, "", "SIGINT"), (-9, "", "SIGKILL"), (130, "", "SIGINT"), (1, "ERROR: Operation cancelled by user", "SIGINT")],
)
def test_an_ended_installer_refuses_nothing(status: int, errors: str, how: str) -> None:
    with pytest.raises(InstallerInterrupted, match=f"ended by {how}$"):
        check_ended(status, errors)
    check_ended(1, "ERROR: No matching distribution found for x")
    check_ended(0, "Operation cancelled by user")


def test_both_installers_are_asked_how_they_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    killed = subprocess.CompletedProcess[str]([], -15, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    monkeypatch.setattr(uv, "program", lambda: "uv")
    with pytest.raises(InstallerInterrupted, match="SIGTERM"):
        pip.install(["x"], {})
    with pytest.raises(InstallerInterrupted, match="SIGTERM"):
        pip.resolve(["x"], {})
    with pytest.raises(InstallerInterrupted, match="SIGTERM"):
        uv.solve(["x"], tmp_path / "pins.txt")


def test_nothing_else_is_tried_after_an_ended_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> dict[str, str]:
        raise InstallerInterrupted("the installer was ended by SIGINT")

    monkeypatch.setattr(uv, "of_its_time", ended)
    monkeypatch.setattr(resolution, "_by_pip", lambda *_: pytest.fail("pip is asked"))
    with pytest.raises(InstallerInterrupted):
        resolve(EnvironmentRequest(TOY, "1.0", suite=False))


@pytest.mark.parametrize(
    ("status", "how"),
    [(0, "connection error: .*"), (503, "HTTPConnectionPool.*too many 503 .*"), (504, "504 Server Error: .*")],
)
def test_an_index_that_does_not_answer_refuses_nothing(
    status: int, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index(status) as address:
        for name, value in settings(address).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RecordError, match=rf"1\.0: a package index or server did not .*{PACKAGE}/: {how}run the"):
            CellLocks(tmp_path, False).read([CELL])
        with pytest.raises(InstallerInterrupted, match=how):
            pip.install([PACKAGE], {}, words=["--dry-run"])
    assert not [*tmp_path.iterdir()]


def test_a_package_that_no_index_has_is_refused_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index(404) as address:
        for name, value in settings(address).items():
            monkeypatch.setenv(name, value)
        reason = f"No matching distribution found for {PACKAGE}==1.0"
        assert CellLocks(tmp_path, False).read([CELL]) == {CELL.key: reason}
    assert CellLocks(tmp_path, False).read([CELL]) == {CELL.key: reason}


@pytest.mark.parametrize(
    "said",
    [
        "error: Failed to fetch: https://x/y/\n  cause: error sending request for url (https://x/y/)",
        "error: Failed to fetch: https://x/y/\n  cause: HTTP status client error (429 Too Many Requests)",
        "ERROR: HTTP error 503 while getting https://x/y.whl",
        "error: connection-failed\n\n× Failed to connect to x while fetching https://x/y.whl",
    ],
)
def test_a_download_that_the_network_ends_refuses_nothing(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess[str]([], 1, "", said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(InstallerInterrupted, match="did not answer"):
        pip.install(["x"], {})
    ended.stderr = "error: Failed to fetch: https://x/y/\n  cause: HTTP status client error (404 Not Found)"
    with pytest.raises(Unavailable, match="404") as refusal:
        pip.install(["x"], {})
    assert not isinstance(refusal.value, InstallerInterrupted)


def test_an_ended_resolution_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: EnvironmentRequest) -> Lock:
        raise InstallerInterrupted("the installer was ended by SIGINT")

    monkeypatch.setattr(cell_locks, "resolve", ended)
    with pytest.raises(RecordError, match=r"1\.0: the installer was ended by SIGINT; run the command again"):
        CellLocks(tmp_path, False).read([CELL])
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(cell_locks, "resolve", lambda _: LOCK)
    assert CellLocks(tmp_path, False).read([CELL]) == {CELL.key: LOCK}


@pytest.mark.parametrize(
    ("lock", "left"),
    [(LOCK, rf"left {PACKAGE} out, want 1\.0"), (Lock(("numpy",), {"numpy": "1.0"}), r"left numpy 2\S+, want 1\.0")],
)
def test_an_environment_without_what_was_asked_for_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: Lock, left: str
) -> None:
    monkeypatch.setattr(environments.pip, "install", lambda *_: None)
    with pytest.raises(InstallerInterrupted, match=left), EnvironmentCache(tmp_path, beneath=here()).using(lock):
        pass
    assert not (tmp_path / lock.name).exists()


@pytest.mark.parametrize("together", [True, False])
def test_no_cell_begins_after_a_signal_whatever_follows_it(tmp_path: Path, together: bool) -> None:
    plan, cells, log = tmp_path / "plan.toml", tmp_path / "cells", tmp_path / "log"
    plan.write_text(TWO_CELLS, "utf-8")
    words = [sys.executable, "-c", SWEEPING, str(cells), str(plan), "--folder", str(tmp_path / "sweep")]
    with running(words, ROOT, log) as process:
        wait_for(lambda: cells.exists() and cells.read_text("utf-8") != "")
        at_once = [signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT]
        for number in at_once if together else [signal.SIGINT, signal.SIGINT, signal.SIGTERM]:
            process.send_signal(number)
        assert process.wait(hang_limit()) == 2, log.read_text("utf-8")
    assert (cells.read_text("utf-8"), log.read_text("utf-8")) == ("begun told to end ", "\nconformance: interrupted\n")


def test_an_ending_cell_leaves_exit_statuses_to_whoever_waits_for_them(tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    words = [sys.executable, "-c", ENDING, str(tmp_path / "cell")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, env=os.environ)
    assert done.stdout == "-9\n"
    assert not (tmp_path / "cell").exists()


def test_a_cell_whose_installer_was_ended_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object) -> None:
        raise InstallerInterrupted("the installer was ended by SIGKILL")

    for name in ("adopt_orphans", "end_with", "end_descendants"):
        monkeypatch.setattr(cell_process.supervision, name, lambda *_: None)
    monkeypatch.setattr(cell_process.signal, "signal", lambda *_: None)
    monkeypatch.setattr(cell_process.msgspec.json, "decode", lambda *_, **__: None)
    monkeypatch.setattr(cell_process, "judge", ended)
    (tmp_path / cell_process.REQUEST).touch()
    assert cell_process.main(tmp_path) == 1
    assert capsys.readouterr().err == "the installer was ended by SIGKILL\n"
    assert not (tmp_path / cell_process.RESULT).exists()
    assert issubclass(InstallerInterrupted, Unavailable)
