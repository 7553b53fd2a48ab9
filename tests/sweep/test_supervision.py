"""Processes of a cell: none outlives its time limit or its parent, in whatever session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.sweep import supervision
from tests.support.suite_runs import ROOT, wait_for

SLEEPER = "import time; time.sleep(600)"
STRAYS = f"""
import subprocess, sys
for session in (False, True):
    subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], start_new_session=session)
print("started", flush=True)
"""
"""A program that leaves a child in its group and one in a new session."""

SUPERVISED = f"""
import os, sys
from pathlib import Path
from conformance.sweep import supervision
folder = Path(sys.argv[1])
supervision.GRACE_S = 0.2
supervision.adopt_orphans()
supervision.end_with(0, folder)
program = {STRAYS!r} + sys.argv[2]
ended = supervision.run([sys.executable, "-c", program], folder / "log", float(sys.argv[3]), os.environ)
print(ended.status, ended.last_line)
"""


@pytest.fixture
def marker(tmp_path: Path) -> str:
    """A marker that no other process has."""
    return f"{os.getpid()}x{abs(hash(tmp_path))}"


def supervised(folder: Path, marker: str, more: str = "", limit_s: float = 600.0) -> subprocess.Popen[bytes]:
    """A process that runs `STRAYS`, followed by `more`, under supervision."""
    folder.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, str(folder), more, str(limit_s)],
        cwd=ROOT,
        env={**os.environ, supervision.MARKER: f"{marker}-cell"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def printed(process: subprocess.Popen[bytes]) -> str:
    """What a process printed until its end; its standard input stays open until then."""
    assert process.stdout is not None
    output = process.stdout.read().decode()
    process.communicate()
    return output


def alive(marker: str) -> int:
    """The number of processes with the marker."""
    return sum(1 for _ in supervision.marked(marker))


def test_a_command_leaves_no_process_behind(tmp_path: Path, marker: str) -> None:
    process = supervised(tmp_path / "cell", marker)
    assert printed(process) == "0 started\n"
    assert alive(marker) == 0


def test_the_time_limit_ends_processes_of_other_sessions_too(tmp_path: Path, marker: str) -> None:
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    begun = time.monotonic()
    process = supervised(tmp_path / "cell", marker, ignoring, limit_s=2.0)
    assert printed(process) == "None started\n"
    assert time.monotonic() - begun < 60
    assert alive(marker) == 0


def test_everything_ends_when_the_parents_pipe_closes(tmp_path: Path, marker: str) -> None:
    process = supervised(tmp_path / "cell", marker, SLEEPER)
    wait_for(lambda: (tmp_path / "cell" / "log").exists() and b"started" in (tmp_path / "cell" / "log").read_bytes())
    assert alive(marker) == 4
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait() == 1
    assert alive(marker) == 0
    assert not (tmp_path / "cell").exists()
    assert process.stdout is not None
    process.stdout.close()


def test_what_a_killed_supervisor_leaves_is_ended_by_its_marker(tmp_path: Path, marker: str) -> None:
    process = supervised(tmp_path / "cell", marker, SLEEPER)
    wait_for(lambda: (tmp_path / "cell" / "log").exists() and b"started" in (tmp_path / "cell" / "log").read_bytes())
    process.kill()
    process.communicate()
    assert alive(marker) == 3
    supervision.end_marked(f"{marker}-other")
    assert alive(marker) == 3
    supervision.end_marked(marker)
    assert alive(marker) == 0


def test_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    program = "print('x' * 100_000); print('the end'); print(); raise SystemExit(3)"
    ended = supervision.run([sys.executable, "-c", program], tmp_path / "log", 600.0, os.environ)
    assert (ended.status, ended.last_line) == (3, "the end")
    assert len(ended.output) == supervision.TAIL
