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
from frameworks.installer.distributions import InstallerInterrupted, Unavailable
from frameworks.installer.resolution import EnvironmentRequest, Lock
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


def test_a_package_that_no_index_has_is_refused_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index(404) as address:
        for name, value in settings(address).items():
            monkeypatch.setenv(name, value)
        reason = f"No matching distribution found for {PACKAGE}==1.0"
        assert CellLocks(tmp_path, False).read([CELL]) == {CELL.key: reason}
    assert CellLocks(tmp_path, False).read([CELL]) == {CELL.key: reason}


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
