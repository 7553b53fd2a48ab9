"""Runs whose processes are killed: what is found of them, and what is called wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.killed import __main__ as command
from benchmarks.killed import runs
from benchmarks.killed.processes import MARK, Process, below, gone_after, kill, marked, of_kind
from benchmarks.killed.runs import Killed, Undisturbed, killed, undisturbed
from results.record.reading import Outcome, Record, TestVerdict
from tests.recorded import header
from tests.support import environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are read in /proc")
SELECTION = ["--framework=reference", "--device=cpu", "conformance/suites/test_sharding_failing.py", "-k", "stops"]
PLAIN = Undisturbed(1.0, {"scaling.x/test_a": "pass", "scaling.x/test_b": "pass"})
WORKER = "import sys;exec(eval(sys.stdin.readline()))"


def test_processes_of_a_run_are_found_whoever_their_parent_is() -> None:
    mark = uuid4().hex
    words = [sys.executable, "-c", "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"]
    with subprocess.Popen(words, env={**environment(), MARK: mark}) as first:
        found = marked(mark)
        while ("sleep", "60") not in {process.words[:2] for process in found.values()}:
            found = marked(mark)
        (child,) = below(first.pid, found)
        assert found[child].words[:2] == ("sleep", "60")
        assert gone_after(mark, None, 0.0)[1] == 2
        kill([first.pid])
        first.wait()
        assert gone_after(mark, {first.pid}, 5.0)[1] == 0
        assert marked(mark).keys() == {child}
        kill(marked(mark))
    assert gone_after(mark, None, 5.0)[1] == 0


def test_kinds_of_processes() -> None:
    words = {2: ("python", "-c", WORKER), 3: ("python", "-m", "frameworks.ranks.member"), 4: ("/bin/sh", "-c", "cat")}
    processes = {pid: Process(pid, 1 if pid == 2 else 2, own) for pid, own in words.items()}
    assert [of_kind(kind, 1, processes) for kind in ("pytest", "worker", "rank")] == [[1], [2], [3]]
    assert below(1, processes) == {2, 3, 4}


@pytest.mark.parametrize(
    ("kind", "journal", "outcomes", "said", "wrong"),
    [
        ("rank", False, ("pass", "error"), "record, complete: 1 pass · 1 error; test_b: error", []),
        ("rank", False, ("error", "error"), "", ["the kill cost more than one test: test_a: error, test_b: error"]),
        ("worker", False, ("pass",), "record, complete: 1 pass", ["1 tests have no verdict"]),
        ("worker", True, ("pass",), "journal", ["a run that was not killed wrote no record"]),
        ("worker", True, (), "journal, interrupted: no test", []),
        ("pytest", True, ("pass", "crash"), "journal, interrupted: 1 pass · 1 crash; test_b: crash", []),
        ("pytest", False, ("pass", "pass"), "record, complete: 2 pass", []),
        ("pytest", False, ("pass",), "record, complete: 1 pass", ["1 tests have no verdict"]),
    ],
)
def test_what_a_run_says_is_judged(
    kind: str,
    journal: bool,
    outcomes: tuple[str, ...],
    said: str,
    wrong: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts = [
        TestVerdict(f"scaling.x/test_{name}", "scaling.x", Outcome(outcome))
        for name, outcome in zip("ab", outcomes, strict=False)
    ]
    status = "interrupted" if journal else "complete"
    found = Record(**vars(header()), finished="later", duration_s=1.0, status=status, verdicts=tuple(verdicts))
    monkeypatch.setattr(runs, "load", lambda _: found)
    monkeypatch.setattr(runs, "recover", lambda _: found)
    (tmp_path / ("run.jsonl" if journal else "run.json")).write_text("x", encoding="utf-8")
    text, problems = runs._said(tmp_path / "run.json", PLAIN, kind)
    assert text.startswith(said)
    assert list(problems) == wrong


def test_a_run_that_was_killed_before_its_journal_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("it broke\n", encoding="utf-8")
    assert runs._said(tmp_path / "run.json", PLAIN, "pytest") == ("nothing yet", [])
    assert runs._said(tmp_path / "run.json", PLAIN, "rank") == ("nothing yet", ["no record: it broke"])


def test_rows_and_the_line_below_them() -> None:
    kills = [Killed(2.0, "pytest", "journal", 1.5, 0, ()), Killed(3.0, "", "record", 0.0, 1, ("1 process lives on",))]
    assert [command.row(one) for one in kills] == [
        "| 2.0 s | pytest | journal | 1.5 s | 0 |",
        "| 3.0 s | nothing | record | 0.0 s | 1 |",
    ]
    assert (
        command.summary(kills) == "killed 1 times pytest; 1 not as they should be; processes gone after 1.5 s at most"
    )


def test_runs_of_the_reference_are_killed() -> None:
    plain = undisturbed(SELECTION)
    assert set(plain.outcomes.values()) == {"pass"}
    found = list(killed(SELECTION, plain, 2, seed=0))
    assert [one.wrong for one in found] == [(), ()]
    assert {one.kind for one in found} <= {"pytest", "worker", ""}


@pytest.mark.parametrize("words", [["--moments", "0"], ["--device", "cpu", "--", "no-such-file.py"]])
def test_what_cannot_be_run_is_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["reference", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
