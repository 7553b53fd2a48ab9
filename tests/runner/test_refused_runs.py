"""What cannot begin is refused before it begins, in one line, with exit status 2; what is ended leaves a record."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from results.record.files import RecordError
from results.record.reading import Journal, load
from tests.support.recorded import header
from tests.support.suite_runs import assert_gone, checkout, conformance, hang_limit, judge, running, wait_for

SUITE = """
@clause("scaling.automaton")
@pytest.mark.parametrize("value", range(30))
def test_step(subject: Subject, verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "a value")
    while value >= 4:
        try:
            time.sleep(3600.0)
        except KeyboardInterrupt:
            if "STUBBORN" not in os.environ:
                raise
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"), slow=SUITE)


# ---------------------------------------------------------------- where a record goes


@pytest.mark.parametrize("ending", ["json", "jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_create_journal_over_pipe_or_folder_is_refused(
    make: Callable[[Path], object], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"run.{ending}"
    make(path)
    before = path.lstat()
    with pytest.raises(RecordError, match="is not a regular file, which a record cannot replace") as refusal:
        Journal.create(tmp_path / "run.json", header())
    assert len(str(refusal.value).splitlines()) == 1
    assert path.lstat() == before


def test_a_pipe_in_a_records_place_ends_a_run_before_it_begins(copied: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.jsonl")
    result = judge(f"--record={tmp_path / 'run.json'}", root=copied)
    assert (result.status, len(result.lines)) == (2, 1), result.lines
    assert "run.jsonl: is not a regular file" in result.lines[0]


# ---------------------------------------------------------------- adapters and options

REFUSED = "pytest refuses its arguments"


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
def test_arguments_that_pytest_cannot_use_end_in_one_line(copied: Path, arguments: list[str], message: str) -> None:
    result = conformance("run", "--device=cpu", "reference", *arguments, root=copied)
    assert result.status == 2, result.lines
    assert message in result.errors.splitlines()[-1], result.lines
    assert len(result.lines) == 1 or message != REFUSED, result.lines
    assert not any("INTERNALERROR" in line for line in result.lines)


# ---------------------------------------------------------------- signals


def children(process: int) -> set[int]:
    """Processes of the process group of any child of this one."""
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


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked for in /proc")


@contextmanager
def start_run(root: Path, folder: Path, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that stays in a test after two have passed; its record and output are in the folder."""
    arguments = ("--device=cpu", "reference", "--numprocesses=1", f"--record={folder}/run.json")
    journal = folder / "run.jsonl"
    argv = [sys.executable, "-m", "conformance", "run", *arguments]
    with running(argv, root, folder / "log", PYTEST_DISABLE_PLUGIN_AUTOLOAD="", **changes) as process:
        wait_for(lambda: journal.exists() and journal.read_bytes().count(b'"pass"') >= 2)
        yield process


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_run_that_is_ended_ends_its_processes_and_leaves_a_record(
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
    assert 2 <= len(record.verdicts) < 30
    assert not [number for number in started if Path(f"/proc/{number}").exists()]
    assert log.read_text().rstrip().endswith("conformance: interrupted")


@needs_proc
def test_a_run_whose_pytest_is_killed_says_by_what_and_how_to_read_its_verdicts(copied: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with start_run(copied, tmp_path, STUBBORN="1") as process:
        started = children(process.pid)
        (controller,) = (n for n in started if b"pytest" in Path(f"/proc/{n}/cmdline").read_bytes().split(b"\0"))
        os.kill(controller, signal.SIGKILL)
        assert process.wait(hang_limit()) == 2, log.read_text()
    assert_gone([*started])
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("conformance: "))
    told, _, how = line.partition("its verdicts so far are in its journal: ")
    assert told == "conformance: SIGKILL killed the run; "
    assert how == f"conformance table {tmp_path / 'run.jsonl'}"
    assert conformance(*how.split()[1:]).status == 0
