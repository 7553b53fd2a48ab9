"""In a job of GitHub Actions no line that is printed gives the job a command."""

import re
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from conformance.runner.subprocesses import harmless
from results.record.reading import write
from tests.support.recorded import BASE, change_verdict
from tests.support.suite_runs import ROOT, checkout, conformance, judge

EVIL = "::error file=x::taken in"
COMMAND = re.compile(r"^\s*::|##\[")
"""What the runner of GitHub takes for a command."""

WARNING = """
@clause("scaling.stays-finite")
def test_warns(verdict: Verdict) -> None:
    warnings.warn("a framework's warning")
    verdict.equal(1, 1, "number", "differs")
"""
PRINTING = """
import sys


print("::error::as it is imported")
os.write(2, b"::error::past Python\\n")


@clause("scaling.automaton")
def test_that_prints(subject: Subject) -> None:
    print("::error::printed")
    print("\N{NO-BREAK SPACE}::warning::printed", file=sys.stderr)
    raise ValueError("a message\\n::error::raised")
"""


def capture_output(*pieces: str, monkeypatch: pytest.MonkeyPatch, job: str = "true") -> str:
    """What comes out where the pieces are printed and flushed one after the other."""
    monkeypatch.setenv("GITHUB_ACTIONS", job)
    out = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(out, "utf-8"))
    with harmless():
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.flush()
    return out.getvalue().decode("utf-8")


@pytest.mark.parametrize(
    "pieces",
    [
        (EVIL,),
        (f"a\n  {EVIL}\n",),
        (f"a\r{EVIL}\n",),
        (f"\N{NO-BREAK SPACE}\N{EM SPACE}{EVIL}\n",),
        ("a ##[error]b\n",),
        tuple(EVIL),
        tuple("a\n ##[error]b"),
        (":", ":", "error::"),
    ],
)
def test_what_is_printed_is_no_command(pieces: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    out = capture_output(*pieces, monkeypatch=monkeypatch)
    assert not [line for line in re.split(r"[\r\n]", out) if COMMAND.search(line)]
    assert out.replace("\N{ZERO WIDTH SPACE}", "") == "".join(pieces)
    assert capture_output(*pieces, monkeypatch=monkeypatch, job="") == "".join(pieces)


@pytest.mark.parametrize("text", ["a::b\n", "a: b\n:\n", "# a\n## b\n", "\x1b[1m::b", "", "no end"])
def test_other_text_stays_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_output(text, monkeypatch=monkeypatch) == text


@pytest.mark.parametrize("arguments", [("table",), ("compare",), ("table", "--format", "markdown")])
def test_a_record_gives_a_job_no_commands(arguments: tuple[str, ...], tmp_path: Path) -> None:
    changed = change_verdict(BASE, 0, test=f"{BASE.verdicts[0].clause}/{EVIL}", message=f"a\n{EVIL}", reason=EVIL)
    series = replace(BASE.series, framework=EVIL, mode=f"\n{EVIL}")
    path = tmp_path / "run.json"
    write(path, replace(changed, series=series, notes=(EVIL, f"##[error]{EVIL}")))
    paths = [path, path] if arguments == ("compare",) else [path]
    result = conformance(*arguments, *paths, GITHUB_ACTIONS="true")
    assert "taken in" in result.output
    assert not [line for line in result.lines if COMMAND.search(line)]


def test_a_test_gives_a_job_no_commands(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", printing=PRINTING)
    result = judge(root=root, GITHUB_ACTIONS="true")
    stopped = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", result.output.splitlines()[0])
    assert stopped
    assert result.output.splitlines()[-1] == f"::{stopped[1]}::"
    assert result.output.count(stopped[1]) == 2
    assert "::error::printed" in result.output
    assert "stop-commands" not in judge(root=root).output
    assert root != ROOT


def test_warnings_of_frameworks_are_listed_on_request(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", warning=WARNING)
    result = judge(root=root)
    assert "1 warning" in result.lines[-1]
    assert "a framework's warning" not in result.output
    assert "a framework's warning" in judge("-rw", root=root).output
