"""Verdicts of earlier runs: what counts, what does not, and the record that comes of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.spec.clauses import load_clauses
from conformance.sweep.verdict_cache import VerdictCache, VerdictKey, due, lasting, merged, of_cell, valid
from results.record.outcomes import Outcome
from results.record.reading import (
    ClauseText,
    Measurement,
    Observation,
    Record,
    Series,
    Suite,
    TestVerdict,
    Trace,
    Variant,
)

SKIP, GIVEN_UP = "scaling.skip-is-atomic", "scaling.abandoned-update-leaves-no-trace"
TESTS = (
    f"{SKIP}/test_skipped_update_is_atomic[inf-sgd]",
    f"{SKIP}/test_skipped_update_keeps_average",
    f"{GIVEN_UP}/test_overflow_can_be_discarded[inf]",
)
WHOLE_RUN = "autocast.settings-restored/every test"
KEY = VerdictKey("reference", "0123", {"numpy": "2.4"}, {"machine": "x86_64"}, ("avx2",), "cpu", "emulated", (), 0)


def verdict(test: str, outcome: Outcome = Outcome.PASS, signature: str = "", message: str = "") -> TestVerdict:
    return TestVerdict(test, test.partition("/")[0], outcome, signature, message)


def record(*verdicts: TestVerdict, status: str = "partial", commit: str = "1" * 40) -> Record:
    """A record of these verdicts with a part of each kind for each of them."""
    known = load_clauses()
    texts = {
        each.clause: ClauseText("MUST", "R.", "S.", (), "scaling", known[each.clause].revision) for each in verdicts
    }
    cases = [each.case for each in verdicts]
    return Record(
        Suite("0.1.0", tuple(texts), (), commit),
        Series("reference", "cpu", "cpu", "emulated"),
        Variant("1"),
        "2026-01-01T00:00:00+00:00",
        0,
        "-k x",
        texts,
        finished="2026-01-01T00:00:10+00:00",
        duration_s=10.0,
        status=status,  # type: ignore[arg-type]
        verdicts=verdicts,
        observations=tuple(Observation(SKIP, "key", case, commit) for case in cases),
        measurements=tuple(Measurement(SKIP, "bytes", case, "B", (1.0,)) for case in cases),
        traces=tuple(Trace("loss", case, {"loss": (1.0,)}) for case in cases),
    ).sorted()


def raised(one: Record, clause: str) -> Record:
    """The record as if the clause had had an earlier revision."""
    text = replace(one.clauses[clause], revision=load_clauses()[clause].revision - 1)
    return replace(one, clauses={**one.clauses, clause: text})


@pytest.mark.parametrize(
    "field", ["framework", "adapter", "device", "mode", "ways", "seed", "packages", "machine", "instruction_sets"]
)
def test_a_key_has_all_that_a_verdict_depends_on(field: str) -> None:
    other = {"ways": ("clip.x",), "seed": 1, "packages": {"numpy": "2.5"}, "machine": {}, "instruction_sets": ()}
    assert replace(KEY, **{field: other.get(field, "other")}).name != KEY.name  # type: ignore[arg-type]
    assert replace(KEY).name == KEY.name


@pytest.mark.parametrize("outcome", Outcome)
def test_verdicts_about_the_machine_do_not_last(outcome: Outcome) -> None:
    lost = {Outcome.TIMEOUT, Outcome.CRASH, Outcome.UNSTABLE, Outcome.ERROR}
    assert lasting(verdict(TESTS[0], outcome), "partial") is (outcome not in lost)


def test_errors_of_the_framework_last_and_those_of_the_run_do_not() -> None:
    for signature, lasts in (
        ("raises-AttributeError", True),
        ("raises-MemoryError", False),
        ("cannot-be-stored", False),
    ):
        assert lasting(verdict(TESTS[0], Outcome.ERROR, signature), "partial") is lasts
    assert lasting(verdict(WHOLE_RUN), "complete")
    assert not lasting(verdict(WHOLE_RUN), "partial")


def test_verdicts_are_kept_and_added(tmp_path: Path) -> None:
    cache = VerdictCache.of(KEY, tmp_path / "verdicts")
    assert cache.read() is None
    cache.add(record(verdict(TESTS[0]), verdict(TESTS[1], Outcome.CRASH)))
    cache.add(record(verdict(TESTS[2], Outcome.FAIL, "s"), commit="2" * 40))
    result = cache.read()
    assert result is not None
    assert {each.test: each.outcome for each in result.verdicts} == {TESTS[0]: Outcome.PASS, TESTS[2]: Outcome.FAIL}
    assert due(TESTS, result) == [TESTS[1]]
    cache.add(record(verdict(TESTS[2])))
    again = cache.read()
    assert again is not None
    assert [each.outcome for each in again.verdicts] == [Outcome.PASS, Outcome.PASS]
    assert len(again.observations) == len(again.traces) == 2


@pytest.mark.parametrize("content", [b"", b"no record", b"\x1f\x8b cut"])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    cache = VerdictCache.of(KEY, tmp_path)
    cache.path.write_bytes(content)
    assert cache.read() is None
    cache.add(record(verdict(TESTS[0])))
    assert cache.read() is not None


def test_verdicts_of_a_clause_whose_revision_was_raised_do_not_count() -> None:
    old = raised(record(*map(verdict, TESTS)), SKIP)
    result = valid(old)
    assert [each.test for each in result.verdicts] == [TESTS[2]]
    assert {each.case for each in result.traces} == {TESTS[2].partition("/")[2]}
    assert due(TESTS, result) == [*TESTS[:2]]


def test_a_run_replaces_what_it_judged_again() -> None:
    earlier = record(*map(verdict, TESTS), commit="1" * 40)
    fresh = record(verdict(TESTS[0], Outcome.FAIL), commit="2" * 40)
    result = merged(fresh, earlier)
    assert [each.outcome for each in result.verdicts if each.test == TESTS[0]] == [Outcome.FAIL]
    assert len(result.verdicts) == len(result.observations) == len(result.traces) == len(result.measurements) == 3
    assert {each.value for each in result.observations if each.case == TESTS[0].partition("/")[2]} == {"2" * 40}
    assert {*result.clauses} == {SKIP, GIVEN_UP}


def test_the_record_of_a_cell_says_where_its_verdicts_are_from() -> None:
    earlier, fresh = record(verdict(TESTS[0]), verdict(TESTS[1])), record(verdict(TESTS[2]), commit="2" * 40)
    result = of_cell(fresh, earlier, TESTS, "-k scaling")
    assert (result.status, result.selection, len(result.verdicts)) == ("partial", "-k scaling", 3)
    assert result.notes == (f"2 of 3 verdicts are from earlier runs in the same environment, last {'1' * 40}",)
    assert of_cell(fresh, None, None, "-k scaling").verdicts == fresh.verdicts
    assert of_cell(None, earlier, TESTS[:2], "").status == "complete"
    lacking = of_cell(None, earlier, TESTS, "-k scaling")
    assert (lacking.status, lacking.notes[1]) == ("interrupted", "1 of 3 tests were not judged")
    assert of_cell(None, earlier, TESTS, "--tests=quick").status == "interrupted"
    assert of_cell(None, earlier, TESTS[:1], "-k x").verdicts == (earlier.verdicts[0],)


def test_a_verdict_about_a_whole_run_stays_with_whole_runs() -> None:
    earlier = record(verdict(TESTS[0]), verdict(WHOLE_RUN), status="complete")
    assert len(of_cell(None, earlier, TESTS[:1], "").verdicts) == 2
    assert len(of_cell(None, earlier, TESTS[:1], "-k x").verdicts) == 1
