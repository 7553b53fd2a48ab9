"""A clause whose tests' code changed asks once whether its meaning did; identities outlive any refactoring."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.runner.recorder import EVERY_TEST, SETTINGS
from conformance.spec.clauses import load_clauses
from conformance.test_ids.inventory import TestCode, id_of, inventory, node_of, read_inventory
from results.compare.comparability import single_modes
from results.compare.comparison import compare
from results.record.model import RunSetup
from results.record.reading import load
from results.record.upgrading import present_case, renames, with_present_names
from tests.support.small_record import BASE, CLAUSE
from tests.support.suite_runs import ROOT, run, sources
from tools.commands import review
from tools.review import revisions
from tools.review.revisions import Review, answered, present, questions, reviews

HELPER = ROOT / "conformance" / "checks" / "evidence.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of this checkout's sources."""
    return sources(tmp_path)


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def asked(root: Path) -> list[str]:
    """Clauses that want an answer in a checkout, where the stored reviews are those of this one."""
    return [each.clause for each in questions(present(), present(root), read_inventory(root)) if not each.answered]


def test_the_reviews_of_this_checkout_are_complete() -> None:
    assert [str(each) for each in questions(reviews(), present(), inventory())] == []


@pytest.mark.slow
def test_a_commit_that_only_refactors_keeps_every_identity(checkout: Path) -> None:
    suites = checkout / "conformance" / "suites"
    (suites / "resume" / "test_resume.py").rename(suites / "test_resuming.py")
    reordered = suites / "composition" / "test_trace.py"
    head, *tests = reordered.read_text("utf-8").split("\n\n\n@clause")
    reordered.write_text("\n\n\n@clause".join((head, *reversed(tests))).rstrip() + "\n", "utf-8")
    assert asked(checkout) == [], "moved files and reordered tests ask nothing"
    for path in (*suites.rglob("*.py"), *(checkout / "conformance" / "techniques").rglob("*.py")):
        path.write_text(path.read_text("utf-8").replace("started(", "begun("), "utf-8")
    after = read_inventory(checkout)
    assert {code.id for code in after.values()} == {code.id for code in inventory().values()}
    assert asked(checkout), "a renamed helper asks for an answer"
    record = load(next((ROOT / "results" / "baselines").glob("torch-*-cpu-eager.json.gz")))
    recorded = {verdict.test.partition("[")[0] for verdict in record.verdicts} - {f"{SETTINGS}/{EVERY_TEST}"}
    assert len(recorded) > 300
    assert recorded <= {code.id for code in after.values()}, "a record names tests that the refactored suite lacks"


def test_a_weakened_helper_is_stopped(checkout: Path) -> None:
    change(checkout / HELPER.relative_to(ROOT), "measured <= bound.value", "measured <= 1000 * bound.value")
    stopped = asked(checkout)
    assert "autocast.float32-parity" in stopped
    assert "autocast.settings-restored" not in stopped


def test_a_changed_requirement_asks_too() -> None:
    clauses = load_clauses()
    other = {**clauses, CLAUSE: replace(clauses[CLAUSE], requirement="Anything goes.")}
    now = present(clauses=other)
    assert [each.clause for each in questions(present(), now, inventory())] == [CLAUSE]


@pytest.mark.parametrize(
    ("former", "revision", "words", "answer"),
    [
        (None, 1, "new", True),
        (Review(1, "old", "new"), 1, "code or text changed at revision 1: test_a.py::test_a", False),
        (Review(1, "old", "new"), 2, "revision raised from 1 to 2", True),
        (Review(3, "old", "new"), 2, "revision 2, want at least 3", False),
    ],
)
def test_what_counts_as_an_answer(former: Review | None, revision: int, words: str, answer: bool) -> None:
    tests = {"test_a": TestCode("test_a.py", "test_a", CLAUSE)}
    stored = {} if former is None else {CLAUSE: former}
    (one,) = questions(stored, {CLAUSE: Review(revision, "now", "")}, tests)
    assert (str(one), one.answered) == (f"{CLAUSE}: {words}", answer)


def test_an_answer_is_stored_once(tmp_path: Path) -> None:
    tests = {name: TestCode("t.py", name, f"s.{name}") for name in ("a", "b", "c")}
    stored = {"s.a": Review(1, "x", "new"), "s.b": Review(1, "y", "new")}
    now = {"s.a": Review(1, "x", ""), "s.b": Review(1, "z", ""), "s.c": Review(1, "w", "")}
    path = tmp_path / "reviewed.toml"
    path.write_text(answered(stored, now, questions(stored, now, tests), 'a "helper" moved'), "utf-8")
    assert reviews(path) == {
        "s.a": Review(1, "x", "new"),
        "s.b": Review(1, "z", 'a "helper" moved'),
        "s.c": Review(1, "w", "new"),
    }
    assert not questions(reviews(path), now, tests)


@pytest.mark.slow
def test_the_command_says_what_wants_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "reviewed.toml"
    path.write_text(revisions.FILE.read_text("utf-8").replace(present()[CLAUSE].digest, "0" * 16), "utf-8")
    monkeypatch.setattr(revisions, "FILE", path)
    monkeypatch.setattr(revisions, "reviews", lambda: reviews(path))

    def command(*words: str) -> tuple[int, str]:
        ended = CliRunner().invoke(review, words, standalone_mode=False)
        return int(ended.return_value), ended.output

    status, output = command()
    assert (status, f"{CLAUSE}: code or text changed at revision 1: " in output) == (1, True)
    assert "1 clause needs a review: raise the revision and use --raised, or use --refactoring WHY" in output
    assert command("--raised")[0] == 1
    assert command("--refactoring", "only  words")[0] == 0
    assert reviews(path)[CLAUSE] == replace(present()[CLAUSE], answer="only words")
    assert command() == (0, "")


def test_lint_asks() -> None:
    text = (ROOT / "tox.ini").read_text("utf-8")
    assert "python -m tools review" in text.partition("[testenv:lint]")[2].partition("[testenv:")[0]
    assert run([sys.executable, "-m", "tools", "review"]).status == 0


def test_an_id_and_a_node_id_are_of_one_test() -> None:
    for code in inventory().values():
        node = f"conformance/suites/{code.file}::{code.function}[a/b::c]"
        assert id_of(node) == f"{code.id}[a/b::c]"
        assert node_of(id_of(node)) == node
    assert node_of("scaling.stays-finite/test_of_nothing") is None
    assert id_of("tests/test_x.py::test_y") == "tests/test_x.py::test_y"


def test_two_tests_of_one_name_are_refused(checkout: Path) -> None:
    name = next(iter(inventory()))
    path = checkout / "conformance" / "suites" / "test_zz.py"
    path.write_text(f'@clause("{CLAUSE}")\ndef {name}(): pass\n', "utf-8")
    with pytest.raises(ValueError, match=f"test_zz.py: {name} is a test of .* too; rename one of them"):
        read_inventory(checkout)


def test_every_renamed_test_is_there_and_its_old_name_is_not() -> None:
    for clause, names in renames().items():
        for old, new in names.items():
            assert inventory()[new].clause == clause
            assert old not in inventory() or inventory()[old].clause != clause


def test_every_test_of_a_single_mode_is_there() -> None:
    for _, test in single_modes():
        clause, _, case = test.partition("/")
        assert inventory()[case.partition("[")[0]].clause == clause


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('["a.b"]\ntest_a = "test b"', "not the name of a function"),
        ('["a.b"]\ntest_a = "test_b"\ntest_b = "test_c"', "which has another name now; write that one"),
    ],
)
def test_names_that_lead_nowhere_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "renames.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=words):
        renames(path)


def test_a_renamed_test_is_the_same_in_records_and_expectations() -> None:
    names = {CLAUSE: {"test_b": "test_new"}}
    record = with_present_names(BASE, names)
    assert [one.case for one in record.verdicts] == ["test_a", "test_new[1]", "test_new[2]"]
    assert {one.case for one in (*record.observations, *record.measurements)} == {"test_a", "test_new[1]"}
    assert present_case(CLAUSE, "test_b[1]", names) == "test_new[1]"
    assert present_case("another.clause", "test_b[1]", names) == "test_b[1]"
    assert compare(with_present_names(BASE, names), record).identical
    assert with_present_names(BASE, {}) == BASE


def test_a_renamed_class_is_the_same_in_the_recipes_of_records() -> None:
    former, present = (
        replace(
            BASE,
            verdicts=tuple(
                replace(one, runs=(RunSetup("mlp", {"clip": 1.0, "quantization": {"freeze": 3, "kind": kind}}),))
                for one in BASE.verdicts
            ),
        )
        for kind in ("Aware", "Qat")
    )
    assert former != present
    assert with_present_names(former) == with_present_names(present) == present
