"""`conformance accept --known` writes what records show: new entries, merged cases, dropped ones."""

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from difflib import ndiff
from pathlib import Path
from typing import Any

import pytest

from conformance.cli import acceptance
from conformance.cli.main import main
from conformance.known_failures.confirm import ConfirmError
from conformance.known_failures.reading import read_known
from conformance.known_failures.toml_edit import table
from conformance.known_failures.update import Cause, ExpectationUpdate, update
from results.record.model import TestVerdict
from results.record.outcomes import Outcome
from results.record.reading import Record, write
from results.record.texts import Consequence, FindingKind, FindingText
from tests.support.suite_runs import refused
from tests.support.twin_records import BOTH, CLAUSE, TEXT, ZERO, failing, passing, record

NEW = FindingText(FindingKind.LIMITATION, Consequence.ERROR, "It raises.", "none found", "")


def failed(case: str, signature: str = "raises-ValueError", clause: str = "scaling.skip-is-atomic") -> TestVerdict:
    """A failure that no entry names."""
    return replace(failing(case, signature, clause), outcome=Outcome.FAIL)


def updated(path: Path, cause: Cause | None, *records: Record) -> ExpectationUpdate:
    """What records make of the file."""
    return update(records, read_known(path.parent, "twin"), path.read_text("utf-8"), cause)


def entries(text: str, finding: str) -> list[dict[str, Any]]:
    """The entries of one finding, without its name."""
    tables = tomllib.loads(text)["expectation"]
    return [{k: v for k, v in each.items() if k != "finding"} for each in tables if each["finding"] == finding]


def test_a_failure_becomes_an_entry_of_what_the_record_shows(path: Path) -> None:
    others = failed("test_d[y]"), failed("test_d[x]"), passing("test_d[z]", "scaling.skip-is-atomic")
    outcome = updated(path, Cause("first"), record("2.0", *BOTH, *others))
    assert outcome.unnamed == ()
    assert outcome.added == ("scaling.skip-is-atomic (raises-ValueError, cpu, eager): test_d[x], test_d[y]",)
    assert entries(outcome.text, "first")[1] == {
        "clause": "scaling.skip-is-atomic",
        "versions": "==2.0",
        "device": "cpu",
        "mode": "eager",
        "cases": ["test_d[x]", "test_d[y]"],
        "signature": "raises-ValueError",
    }
    assert not [line for line in ndiff(TEXT.splitlines(), outcome.text.splitlines()) if line.startswith("- ")]
    assert outcome.text.index('"scaling.skip-is-atomic"') < outcome.text.index("# Another one")


def test_update_of_every_case_lists_none_and_splits_by_signature(path: Path) -> None:
    outcome = updated(path, Cause("first"), record("2.0", *BOTH, failed("test_d[x]"), failed("test_d[y]")))
    assert "cases" not in entries(outcome.text, "first")[1]
    outcome = updated(path, Cause("first"), record("2.0", *BOTH, failed("test_d"), failed("test_e", "other")))
    assert [(entry["cases"], entry["signature"]) for entry in entries(outcome.text, "first")[1:]] == [
        (["test_d"], "raises-ValueError"),
        (["test_e"], "other"),
    ]


def test_cases_join_an_entry_that_is_the_same_otherwise(path: Path) -> None:
    path.write_text(TEXT.replace(">=1.0,<=2.0", "==2.0"), encoding="utf-8")
    more = failed("test_e", "differs", CLAUSE), passing("test_f")
    outcome = updated(path, Cause("first"), record("2.0", *BOTH, *more))
    (entry,) = entries(outcome.text, "first")
    assert entry["cases"] == ["test_a[x]", "test_b", "test_e"]


def test_what_fails_in_every_mode_names_none(path: Path) -> None:
    eager = record("2.0", *BOTH, failed("test_d"), failed("test_e", clause="scaling.automaton"))
    graph = replace(record("2.0", *BOTH, failed("test_d")), series=replace(eager.series, mode="graph"))
    outcome = updated(path, Cause("first"), eager, graph)
    places = {each["clause"]: each.get("mode") for each in entries(outcome.text, "first")[1:]}
    assert places == {"scaling.skip-is-atomic": None, "scaling.automaton": "eager"}


def test_a_new_finding_is_written_with_its_entries(path: Path) -> None:
    long = replace(NEW, reason='A "long" \\ reason, ' * 12)
    outcome = updated(path, Cause("new-one", long), record("2.0", *BOTH, failed("test_d")))
    assert tomllib.loads(outcome.text)["finding"][-1]["id"] == "new-one"
    assert " ".join(tomllib.loads(outcome.text)["finding"][-1]["reason"].split()) == " ".join(long.reason.split())
    assert len(entries(outcome.text, "new-one")) == 1
    assert max(map(len, outcome.text.splitlines())) <= 120


def test_only_the_clauses_that_are_named_get_entries(path: Path) -> None:
    run = record("2.0", *BOTH, failed("test_d"), failed("test_e", clause="scaling.automaton"))
    outcome = updated(path, Cause("first", clauses=("scaling.automaton",)), run)
    assert [verdict.case for verdict in outcome.unnamed] == ["test_d"]
    assert [each["clause"] for each in entries(outcome.text, "first")[1:]] == ["scaling.automaton"]


def test_an_entry_that_holds_nowhere_any_more_is_dropped_and_its_finding_with_the_last(path: Path) -> None:
    repaired = passing("test_c", "scaling.stays-positive", Outcome.FIXED)
    outcome = updated(path, None, record("2.0", *BOTH[:2], repaired))
    assert ("scaling.stays-positive", "==2.0", "dropped") in outcome.confirmed.changes
    assert [each["clause"] for each in entries(outcome.text, "second")] == ["scaling.automaton"], "of another mode"
    path.write_text(TEXT[: TEXT.rindex("[[expectation]]")], encoding="utf-8")
    outcome = updated(path, None, record("2.0", *BOTH[:2], repaired))
    assert [each["id"] for each in tomllib.loads(outcome.text)["finding"]] == ["first"]
    assert "# Another one" in outcome.text


@pytest.mark.parametrize(
    ("cause", "outcome", "problem"),
    [
        (Cause("third"), Outcome.FAIL, "the finding 'third' does not exist; describe it with --text"),
        (Cause("first", NEW), Outcome.FAIL, "the finding 'first' exists already; omit"),
        (Cause("first"), Outcome.MISDECLARED, "no failure needs an entry of this finding; omit --finding"),
    ],
)
def test_update_with_a_wrong_cause_is_refused(path: Path, cause: Cause, outcome: Outcome, problem: str) -> None:
    with pytest.raises(ConfirmError, match=problem):
        updated(path, cause, record("2.0", *BOTH, replace(failed("test_d"), outcome=outcome)))


@pytest.mark.parametrize("value", ["plain", 'with "quotes" and \\', "word " * 60, "a\nb", "é→"])
def test_a_table_says_what_it_is_given(value: str) -> None:
    text = table("some", {"text": value, "list": (value, "b"), "none": ()})
    (read,) = tomllib.loads(text)["some"]
    assert " ".join(read["text"].split()) == " ".join(value.split())
    assert read["list"] == [value, "b"]
    assert "none" not in read


@pytest.fixture
def command(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that updates the file from a run with a failure that no entry names."""
    monkeypatch.setattr(acceptance, "_known_failures_file", lambda *_: path)
    write(tmp_path / "run.json", record("3.0", *BOTH, failed("test_d")))
    return ["accept", "--known", str(tmp_path / "run.json")]


def test_the_command_writes_and_a_dry_run_does_not(
    path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command, "--finding", "new-one", "--text", "limitation", "error", "It raises."]
    assert main([*words, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert '+cpu.eager = ["1.0", "2.0", "3.0"]  # by hand' in output
    assert "3.0 cpu eager would be judged" in output
    assert path.read_text("utf-8") == TEXT
    assert main(words) == 0
    assert "added: scaling.skip-is-atomic (raises-ValueError, cpu, eager): every case" in capsys.readouterr().out
    known = read_known(path.parent, "twin")
    assert [entry.versions for entry in known.expectations if entry.finding.id == "new-one"] == ["==3.0"]
    assert main(command) == 0
    assert "no change" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--clause", CLAUSE), "need --finding"),
        (("--finding", "new-one", "--text", "error", "error", "x"), "got 'error', want one of defect, "),
        (("--finding", "new-one", "--text", "limitation", "error", " "), "the reason is empty"),
        (
            ("--finding", "broken", "--text", "defect", "error", "x"),
            "a defect needs a program that shows it, findings/broken.py",
        ),
        (
            ("--finding", "new-one", "--text", "numerics", "error", "x"),
            "the consequence of the class numerics is last-bits, not error",
        ),
        (("--finding", "third"), "the finding 'third' does not exist"),
    ],
)
def test_what_cannot_be_written_is_one_line_and_changes_nothing(
    words: tuple[str, ...], problem: str, path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(capsys, *command, *words)
    assert path.read_text("utf-8") == TEXT


def test_an_adapter_without_a_file_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "twin" / "expectations.toml"
    place.parent.mkdir()
    monkeypatch.setattr(acceptance, "_known_failures_file", lambda *_: place)
    run = tmp_path / "run.json"
    write(run, record("3.0", failed("test_d"), passing("test_e"), replace(ZERO, outcome=Outcome.PASS)))
    assert main(["accept", "--known", str(run)]) == 1
    assert "1 failures need a finding" in capsys.readouterr().out
    words = ["--finding", "a", "--text", "documented", "cost", "It does."]
    assert main(["accept", "--known", str(run), *words]) == 0
    known = read_known(place.parent, "twin")
    assert (known.judged, len(known.expectations)) == ({"twin": {("cpu", "eager"): ("3.0",)}}, 1)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A record of an adapter that can be imported and is not registered."""
    package = tmp_path / "elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("from pathlib import Path\nPath(__file__).with_name('imported').touch()\n")
    (package / "adapter.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    run = record("3.0", failed("test_d"), passing("test_e"), replace(ZERO, outcome=Outcome.PASS))
    write(tmp_path / "run.json", replace(run, series=replace(run.series, framework="elsewhere.adapter:Adapter")))
    yield package
    sys.modules.pop("elsewhere", None)


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--framework", "torch"), ("--framework", "elsewhere:Adapter")])
def test_a_record_imports_nothing_and_names_no_place_to_write(
    words: tuple[str, ...], stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(stranger.iterdir())
    line = refused(capsys, "accept", "--known", str(stranger.parent / "run.json"), *words)
    assert "is of 'elsewhere.adapter:Adapter', " in line
    assert sorted(stranger.iterdir()) == before
    assert "elsewhere" not in sys.modules


def test_an_adapter_that_the_user_names_is_written(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--framework", "elsewhere.adapter:Adapter"]
    assert main(["accept", "--known", str(stranger.parent / "run.json"), *words]) == 1
    assert "1 failures need a finding" in capsys.readouterr().out
    assert 'cpu.eager = ["3.0"]' in (stranger / "expectations.toml").read_text("utf-8")
