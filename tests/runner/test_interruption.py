"""A run that is killed, stopped or in another run's way costs at most the test that it was in."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.runner.jobs import RESTARTS
from conformance.runner.workers import MOST, LostWorkers
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import (
    TIMEOUTS,
    WORKERS,
    Ended,
    assert_gone,
    by_case,
    checkout,
    command,
    hang_limit,
    heed_signals,
    judge,
    wait_for,
)
from tests.support.suite_runs import running as started

SUITE = """
@clause("scaling.automaton")
@pytest.mark.parametrize("value", range(40))
def test_step(subject: Subject, verdict: Verdict, value: int) -> None:
    subject.trainer(scalar())
    if "STAYING" in os.environ and value >= 8:
        time.sleep(3600.0)
    verdict.equal(value % 4 == 3, False, "three of four pass", "fourth")
"""
STUBBORN = """
@clause("scaling.automaton")
def test_that_takes_no_interrupt(subject: Subject) -> None:
    Path("worker").write_text(str(os.getpid()))
    while True:
        with suppress(KeyboardInterrupt):
            time.sleep(3600.0)
"""
WITH_RANKS = """
from frameworks.ranks import worker_group_of


@clause("scaling.automaton")
def test_with_ranks(subject: Subject) -> None:
    crew = worker_group_of("tests.support.toy_ranks:Toy", 2, "cpu", "", {})
    Path("writing").write_text(json.dumps([os.getpid(), os.getppid(), *crew.pids]))
    os.replace("writing", "processes")
    time.sleep(3600.0)
"""
DYING = """
if os.environ.get("PYTEST_XDIST_WORKER") in os.environ["DYING"].split():
    os.kill(os.getpid(), signal.SIGKILL)


@clause("scaling.automaton")
def test_that_passes(subject: Subject) -> None:
    assert subject
"""
AT_THE_START = """
import os
import signal
import sys

if any("sys.stdin.readline" in word for word in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGKILL)
"""
ABORTING = "--framework=tests.support.misbehaving:AbortingAtOnce"
PRINTED = re.compile(r"::(test_step\[\d+\]) (PASSED|FAILED)")


@dataclass(frozen=True)
class Running:
    """A run of 40 tests that stays in one of them after it has finished some."""

    process: subprocess.Popen[bytes]
    root: Path
    log: Path
    record: Path

    def printed_words(self) -> dict[str, str]:
        """What the run has told so far: the word for each case."""
        return dict(PRINTED.findall(self.log.read_text("utf-8")))

    def interrupted_records(self) -> list[Path]:
        """Records of interrupted runs beside the record."""
        return sorted(self.record.parent.glob("run.interrupted-*.json"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"), steps=SUITE)


@pytest.fixture
def running(copied: Path, tmp_path: Path) -> Iterator[Running]:
    record, log = tmp_path / "run.json", tmp_path / "log"
    with started(command("-vv", f"--record={record}"), copied, log, STAYING="1") as process:
        run = Running(process, copied, log, record)
        wait_for(lambda: len(run.printed_words()) >= 6 or process.poll() is not None)
        assert process.poll() is None, log.read_text("utf-8")
        yield run


def test_kill_9_loses_no_verdict_that_was_told(running: Running) -> None:
    running.process.kill()
    running.process.wait()
    printed, journal = running.printed_words(), running.record.with_suffix(".jsonl")
    saved = by_case(load(journal))
    expected = {case: Outcome.PASS if word == "PASSED" else Outcome.FAIL for case, word in printed.items()}
    assert expected.items() <= saved.items()
    assert len(saved) <= len(printed) + 2
    assert judge("-k", "3", f"--record={running.record}", root=running.root).status == 1
    assert not journal.exists()
    assert by_case(load(running.record)).keys() == {f"test_step[{n}]" for n in range(40) if "3" in str(n)}
    (path,) = running.interrupted_records()
    assert by_case(load(path)) == saved
    assert load(path).status == "interrupted"


def test_a_worker_ends_soon_after_its_run_is_killed(tmp_path: Path) -> None:
    root, log, record = checkout(tmp_path / "checkout", stubborn=STUBBORN), tmp_path / "log", tmp_path / "run.json"
    argv = command("--framework=reference", "--numprocesses=1", *WORKERS, f"--record={record}")
    with started(argv, root, log) as process:
        wait_for(lambda: (root / "worker").is_file() and (root / "worker").read_text() != "")
        wait_for(lambda: "test_that_takes_no_interrupt" in record.with_suffix(".jsonl").read_text("utf-8"))
        worker = int((root / "worker").read_text())
        process.kill()
        process.wait()
        assert_gone([worker])
    (crash,) = load(record.with_suffix(".jsonl")).verdicts
    assert crash.outcome == Outcome.CRASH


def test_pytest_and_ranks_end_soon_after_the_command_is_killed(tmp_path: Path) -> None:
    root, record = checkout(tmp_path / "checkout", ranks=WITH_RANKS), tmp_path / "run.json"
    argv = [sys.executable, "-m", "conformance", "run", "reference", *WORKERS, *TIMEOUTS, f"--record={record}"]
    with started(argv, root, tmp_path / "log") as process:
        wait_for(lambda: (root / "processes").is_file() or process.poll() is not None)
        processes = json.loads((root / "processes").read_text("utf-8"))
    assert_gone(processes)
    wait_for(lambda: len([*tmp_path.glob("run.interrupted-*.json")]) == 1)


def test_a_record_that_a_run_holds_is_refused_and_interrupted_by_ctrl_c(running: Running) -> None:
    running.process.send_signal(signal.SIGSTOP)
    refused = judge(f"--record={running.record}", root=running.root)
    running.process.send_signal(signal.SIGCONT)
    assert (refused.status, len(refused.lines)) == (2, 1), refused.lines
    assert "another run is writing it" in refused.lines[0]
    assert running.process.poll() is None
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(hang_limit()) == 2
    (path,) = running.interrupted_records()
    result, printed = load(path), running.printed_words()
    assert result.status == "interrupted"
    assert printed.keys() <= by_case(result).keys()
    assert set(by_case(result).values()) <= {Outcome.PASS, Outcome.FAIL}
    assert not running.record.exists()
    assert not running.record.with_suffix(".jsonl").exists()


def test_an_interrupted_run_interrupts_its_workers() -> None:
    workers = LostWorkers()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=heed_signals) as process:
        for popen in (process, None):
            workers.pytest_configure_node(SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(popen=popen))))
        workers.pytest_keyboard_interrupt()
        assert process.wait(hang_limit()) != 0


@pytest.mark.parametrize(
    ("arguments", "bad"),
    [(["-x"], Outcome.FAIL), ([ABORTING, *WORKERS, "--numprocesses=1", "--max-worker-restart=0"], Outcome.CRASH)],
    ids=["stops at the first failure", "gives up on its workers"],
)
def test_a_run_that_does_not_go_on_is_interrupted(
    copied: Path, tmp_path: Path, arguments: list[str], bad: Outcome
) -> None:
    result = judge(*arguments, f"--record={tmp_path / 'run.json'}", root=copied)
    assert result.status == 1, result.lines
    (path,) = tmp_path.glob("*.json")
    assert (path.name, load(path).status) == ("run.interrupted-1.json", "interrupted")
    assert [outcome for outcome in by_case(load(path)).values() if outcome is not Outcome.PASS] == [bad]


def test_without_workers_a_crash_is_told_by_the_next_run(copied: Path, tmp_path: Path) -> None:
    record = tmp_path / "run.json"
    for _ in range(2):
        result = judge(ABORTING, f"--record={record}", root=copied)
        assert result.status == -signal.SIGABRT, result.lines
    (path,) = tmp_path.glob("run.interrupted-*.json")
    (crash,) = load(path).verdicts
    assert (crash.outcome, crash.case) == (Outcome.CRASH, "test_step[0]")
    assert crash.case in crash.repro


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = checkout(tmp_path_factory.mktemp("dying"), dying=DYING)
    (root / "start").mkdir()
    (root / "start" / "sitecustomize.py").write_text(AT_THE_START, "utf-8")
    return root


def with_workers(root: Path, record: Path, **changes: str) -> Ended:
    """A run by two workers, which are replaced as `conformance run` has it."""
    arguments = (
        f"--record={record}",
        *WORKERS,
        "--numprocesses=2",
        f"--max-worker-restart={RESTARTS}",
        "--dist=worksteal",
    )
    return judge(*arguments, root=root, **{"DYING": "", **changes})


def test_a_worker_that_is_killed_as_it_collects_is_replaced(dying: Path, tmp_path: Path) -> None:
    result = with_workers(dying, tmp_path / "run.json", DYING="gw0")
    assert result.status == 0, result.lines
    assert [v.outcome for v in load(tmp_path / "run.json").verdicts if "test_that_passes" in v.test] == [Outcome.PASS]


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("DYING", " ".join(f"gw{number}" for number in range(1000)), f"{MOST} workers ended before they had collected"),
        ("PYTHONPATH", "start", "Exit: a worker ended at its start; find"),
    ],
    ids=["all as they collect", "one as it starts"],
)
def test_workers_that_are_killed_end_the_run_in_one_line(
    dying: Path, tmp_path: Path, variable: str, value: str, text: str
) -> None:
    result = with_workers(dying, tmp_path / "run.json", **{variable: value})
    assert result.status == 2, result.lines
    assert {text in line for line in result.lines if "find out what kills them" in line} == {True}
    assert "INTERNALERROR" not in result.output + result.errors
    assert [load(path).status for path in tmp_path.glob("run.*")] == ["interrupted"]
