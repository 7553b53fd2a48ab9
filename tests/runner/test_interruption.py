"""Runs that are killed, stopped, refused or interfere with each other."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.runner.isolation import MOST, LostWorkers
from conformance.runner.jobs import RESTARTS
from results.record.model import Outcome
from results.record.reading import load
from tests.support.suite_runs import (
    ROOT,
    TIMEOUTS,
    WORKERS,
    CommandResult,
    assert_ended,
    command,
    conformance,
    copy_checkout,
    hang_limit,
    judge,
    outcomes_by_case,
    reset_signal_handlers,
    running,
    wait_for,
)

SUITE = """
@clause("scaling.automaton")
@pytest.mark.parametrize("value", range(40))
def test_step(subject: Subject, verdict: Verdict, value: int) -> None:
    subject.trainer(scalar())
    while "STAYING" in os.environ and value >= 8:
        try:
            time.sleep(3600.0)
        except KeyboardInterrupt:
            if "STUBBORN" not in os.environ:
                raise
    verdict.equal(value % 4 == 3, False, "three of four pass", "fourth")
"""
WITH_RANKS = """
from frameworks.ranks import worker_group_of


@clause("scaling.automaton")
def test_with_ranks(subject: Subject) -> None:
    group = worker_group_of("tests.support.toy_ranks:Toy", 2, "cpu", "", {})
    Path("writing").write_text(json.dumps([os.getpid(), os.getppid(), *group.pids]))
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

if any("sys.stdin.readline" in argument for argument in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGKILL)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
CHILD = """
import os, time
from conformance.runner.isolation import end_with_parent

end_with_parent()
print(os.getpid(), flush=True)
time.sleep(600.0)
"""
ABORTING = "--framework=tests.support.misbehaving:AbortingAtOnce"
PRINTED = re.compile(r"::(test_step\[\d+\]) (PASSED|FAILED)")
REFUSED = "pytest refuses its arguments"
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked for in /proc")


def children(process: int) -> set[int]:
    """Processes in the process groups of the children of a process."""
    result = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == process or int(fields[2]) in result:
                result.add(int(folder.name))
    return result


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout"), steps=SUITE)


def test_run_after_kill_9_has_every_printed_verdict(copied: Path, tmp_path: Path) -> None:
    record, log = tmp_path / "run.json", tmp_path / "log"
    with running(command("-vv", f"--record={record}"), copied, log, STAYING="1") as process:
        wait_for(lambda: len(PRINTED.findall(log.read_text("utf-8"))) >= 6 or process.poll() is not None)
        assert process.poll() is None, log.read_text("utf-8")
        refused = judge(f"--record={record}", root=copied)
        assert (refused.status, len(refused.lines)) == (2, 1), refused.lines
        assert "another run is writing it" in refused.lines[0]
        process.kill()
        process.wait()
    printed, journal = dict(PRINTED.findall(log.read_text("utf-8"))), record.with_suffix(".jsonl")
    saved = outcomes_by_case(load(journal))
    expected = {case: Outcome.PASS if text == "PASSED" else Outcome.FAIL for case, text in printed.items()}
    assert expected.items() <= saved.items()
    assert len(saved) <= len(printed) + 2
    assert judge("-k", "3", f"--record={record}", root=copied).status == 1
    assert not journal.exists()
    assert outcomes_by_case(load(record)).keys() == {f"test_step[{n}]" for n in range(40) if "3" in str(n)}
    (path,) = tmp_path.glob("run.interrupted-*.json")
    assert outcomes_by_case(load(path)) == saved
    assert load(path).status == "interrupted"


def test_run_of_a_killed_command_ends_pytest_and_ranks(tmp_path: Path) -> None:
    root, record = copy_checkout(tmp_path / "checkout", ranks=WITH_RANKS), tmp_path / "run.json"
    argv = [sys.executable, "-m", "conformance", "run", "reference", *WORKERS, *TIMEOUTS, f"--record={record}"]
    with running(argv, root, tmp_path / "log") as process:
        wait_for(lambda: (root / "processes").is_file() or process.poll() is not None)
        processes = json.loads((root / "processes").read_text("utf-8"))
    assert_ended(processes)
    wait_for(lambda: len([*tmp_path.glob("run.interrupted-*.json")]) == 1)


def test_end_with_parent_of_a_killed_parent_ends_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running([sys.executable, "-c", PARENT, CHILD], ROOT, log):
        wait_for(lambda: log.read_text().endswith("\n"))
        pid = int(log.read_text())
    assert_ended([pid])


def test_lost_workers_interrupts_workers() -> None:
    workers = LostWorkers()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep, preexec_fn=reset_signal_handlers) as process:
        for popen in (process, None):
            workers.pytest_configure_node(SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(popen=popen))))
        workers.pytest_keyboard_interrupt()
        assert process.wait(hang_limit()) != 0


@pytest.mark.parametrize(
    ("arguments", "failure"),
    [(["-x"], Outcome.FAIL), ([ABORTING, *WORKERS, "--numprocesses=1", "--max-worker-restart=0"], Outcome.CRASH)],
    ids=["stops at the first failure", "gives up on its workers"],
)
def test_run_that_stops_early_has_an_interrupted_record(
    copied: Path, tmp_path: Path, arguments: list[str], failure: Outcome
) -> None:
    result = judge(*arguments, f"--record={tmp_path / 'run.json'}", root=copied)
    assert result.status == 1, result.lines
    (path,) = tmp_path.glob("*.json")
    assert (path.name, load(path).status) == ("run.interrupted-1.json", "interrupted")
    assert [outcome for outcome in outcomes_by_case(load(path)).values() if outcome is not Outcome.PASS] == [failure]


def test_run_after_a_crash_saves_its_journal(copied: Path, tmp_path: Path) -> None:
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
    root = copy_checkout(tmp_path_factory.mktemp("dying"), dying=DYING)
    (root / "start").mkdir()
    (root / "start" / "sitecustomize.py").write_text(AT_THE_START, "utf-8")
    return root


def with_workers(root: Path, record: Path, **changes: str) -> CommandResult:
    """Runs the suites with two workers, which are replaced as `conformance run` does."""
    arguments = (
        f"--record={record}",
        *WORKERS,
        "--numprocesses=2",
        f"--max-worker-restart={RESTARTS}",
        "--dist=worksteal",
    )
    return judge(*arguments, root=root, **{"DYING": "", **changes})


def test_run_with_a_worker_killed_at_collection_replaces_it(dying: Path, tmp_path: Path) -> None:
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
def test_run_with_all_workers_killed_ends_in_one_line(
    dying: Path, tmp_path: Path, variable: str, value: str, text: str
) -> None:
    result = with_workers(dying, tmp_path / "run.json", **{variable: value})
    assert result.status == 2, result.lines
    assert {text in line for line in result.lines if "find out what kills them" in line} == {True}
    assert "INTERNALERROR" not in result.output + result.errors
    assert [load(path).status for path in tmp_path.glob("run.*")] == ["interrupted"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], REFUSED),
        (["--maxfail=many"], REFUSED),
        (["-p", "no_such_plugin"], REFUSED),
        (["-k", "and"], "-k: got 'and', want an expression such as 'a and not b'"),
        (["--numprocesses=0", "-m", "gpu or ("], "-m: got 'gpu or (', want an expression"),
        (["--numprocesses=0", "-k", "no_such_test"], "no test is selected; correct the selection"),
    ],
)
def test_run_with_wrong_arguments_of_pytest_is_refused_in_one_line(
    copied: Path, arguments: list[str], message: str
) -> None:
    result = conformance("run", "--device=cpu", "reference", *arguments, root=copied)
    assert result.status == 2, result.lines
    assert message in result.errors.splitlines()[-1], result.lines
    assert len(result.lines) == 1 or message != REFUSED, result.lines
    assert not any("INTERNALERROR" in line for line in result.lines)


@contextmanager
def start_run(root: Path, folder: Path, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that stays in its ninth test, with its record and output in the folder."""
    arguments = ("--device=cpu", "reference", "--numprocesses=1", f"--record={folder}/run.json")
    journal = folder / "run.jsonl"
    argv = [sys.executable, "-m", "conformance", "run", *arguments]
    with running(argv, root, folder / "log", PYTEST_DISABLE_PLUGIN_AUTOLOAD="", STAYING="1", **changes) as process:
        wait_for(lambda: journal.exists() and b"test_step[8]" in journal.read_bytes())
        yield process


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_run_that_gets_a_signal_ends_its_processes_and_leaves_a_record(
    copied: Path, tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log"
    with start_run(copied, tmp_path) as process:
        started = children(process.pid)
        assert started
        process.send_signal(number)
        assert process.wait(hang_limit()) == 2, log.read_text()
    (path,) = tmp_path.glob("run*.json*")
    record = load(path)
    assert (path.name.startswith("run.interrupted-1"), record.status) == (True, "interrupted")
    assert 2 <= len(record.verdicts) < 40
    assert set(outcomes_by_case(record).values()) <= {Outcome.PASS, Outcome.FAIL}
    assert not [number for number in started if Path(f"/proc/{number}").exists()]
    assert log.read_text().rstrip().endswith("conformance: interrupted")


@needs_proc
def test_run_whose_pytest_is_killed_names_the_signal_and_the_journal(copied: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start_run(copied, tmp_path, STUBBORN="1") as process:
        started = children(process.pid)
        (controller,) = (n for n in started if b"pytest" in Path(f"/proc/{n}/cmdline").read_bytes().split(b"\0"))
        os.kill(controller, signal.SIGKILL)
        assert process.wait(hang_limit()) == 2, log.read_text()
    assert_ended([*started])
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("conformance: "))
    journal = tmp_path / "run.jsonl"
    advice = f"its verdicts so far are in its journal: conformance table {journal}"
    assert line == f"conformance: SIGKILL killed the run; {advice}"
    assert conformance("table", journal).status == 0
    assert Outcome.CRASH in outcomes_by_case(load(journal)).values()
