"""Repetition of tests that got worse, in new processes before a run ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.runner import jobs, retry
from conformance.runner.retry import due, settle
from conformance.test_ids.inventory import inventory
from results.record.model import Outcome, TestVerdict
from results.record.reading import Record, load
from tests.support.recorded import BASE
from tests.support.suite_runs import conformance, copy_checkout, hang_limit

SUITE = """
@clause("scaling.automaton")
def test_flaky(subject: Subject, verdict: Verdict) -> None:
    verdict.holds(subject.framework.steady(), "steadiness", signature="restless")

@clause("scaling.automaton")
def test_fails(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 2, "numbers")

@clause("scaling.automaton")
def test_dies(subject: Subject, verdict: Verdict) -> None:
    if not subject.framework.steady():
        os.abort()

@clause("scaling.automaton")
def test_passes(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(1, 1, "numbers")

@clause("scaling.automaton")
def test_sleeps_at_first(subject: Subject, verdict: Verdict) -> None:
    if not subject.framework.steady():
        time.sleep(3600.0)
    verdict.observe("sleeps", False)
"""
DYING = """
@clause("scaling.automaton")
@pytest.mark.parametrize("number", range(5))
def test_dies(number: int) -> None:
    os.abort()
"""
FAILED = TestVerdict("c/t", "c", Outcome.FAIL, signature="differs", message="numbers")
KNOWN = replace(FAILED, outcome=Outcome.KNOWN)
TIMED_OUT = replace(FAILED, outcome=Outcome.TIMEOUT, signature="timeout")
PASSED = replace(FAILED, outcome=Outcome.PASS, signature="", message="")
REFUSED = replace(FAILED, outcome=Outcome.UNSUPPORTED, signature="precision.O1-float16")
NEW = "fail (restless) in the run, pass and pass when repeated in a new process: steadiness"
SETTLED = {
    "test_flaky": (Outcome.UNSTABLE, ("pass", "pass"), NEW),
    "test_dies": (Outcome.UNSTABLE, ("pass", "pass"), "crash"),
    "test_fails": (Outcome.FAIL, ("fail (differs)",) * 2, ""),
    "test_passes": (Outcome.PASS, (), ""),
    "test_sleeps_at_first": (Outcome.PASS, ("pass", "pass"), ""),
}
"""Outcome, repeats and begin of the message of each test of the suite."""


def test_run_repeats_what_got_worse(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path / "checkout", some=SUITE)
    arguments = ("run", "--device=cpu", "tests.support.misbehaving:Flaky", f"--timeout={hang_limit(1.5):g}")
    result = conformance(*arguments, root=root, FLAKY=str(tmp_path / "first"), TMPDIR=str(tmp_path))
    assert (result.status, [*tmp_path.glob("conformance-*")]) == (1, [])
    for line in (
        "repeating 4 verdicts that got worse, 2 times, in new processes",
        "unstable, regressions that did not repeat in 2 new processes: 2 (test_dies, test_flaky)",
        "timed out while other tests ran, and not when repeated alone: 1 (test_sleeps_at_first)",
        "regressions that repeated in 2 new processes: 1 (test_fails)",
    ):
        assert line in result.output, result.output
    (path,) = (root / "results" / "records").iterdir()
    record = load(path)
    (observation,) = record.observations
    assert (observation.case, observation.value) == ("test_sleeps_at_first", False)
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    for case, (outcome, repeats, message) in SETTLED.items():
        assert (verdicts[case].outcome, verdicts[case].repeats) == (outcome, repeats), case
        assert verdicts[case].message.startswith(message)
    assert verdicts["test_flaky"].signature == "restless"


def test_run_goes_on_after_more_deaths_than_xdist_allows(tmp_path: Path) -> None:
    arguments = ("reference", f"--record={tmp_path / 'r.json'}", "--profile=nightly", "--tests=all", "--numprocesses=1")
    result = conformance("run", "--device=cpu", *arguments, root=copy_checkout(tmp_path / "checkout", dying=DYING))
    record = load(tmp_path / "r.json")
    assert (result.status, record.status) == (1, "complete"), result.lines
    assert [v.outcome for v in record.verdicts if v.case.startswith("test_dies")] == [Outcome.CRASH] * 5
    assert "repeat" not in result.output.replace("repeat: ", "")


@pytest.mark.parametrize(
    ("verdict", "repeats", "expected"),
    [
        (FAILED, (FAILED, FAILED), FAILED),
        (FAILED, (FAILED, PASSED), Outcome.UNSTABLE),
        (FAILED, (FAILED, replace(FAILED, outcome=Outcome.ERROR, signature="raises-ValueError")), FAILED),
        (FAILED, (KNOWN, FAILED), Outcome.UNSTABLE),
        (FAILED, (None, FAILED), FAILED),
        (FAILED, (None, None), FAILED),
        (KNOWN, (KNOWN, KNOWN), KNOWN),
        (KNOWN, (KNOWN, replace(KNOWN, signature="other")), Outcome.UNSTABLE),
        (KNOWN, (PASSED, KNOWN), Outcome.UNSTABLE),
        (REFUSED, (replace(REFUSED, signature="precision.O1-bfloat16"), REFUSED), REFUSED),
        (REFUSED, (replace(REFUSED, outcome=Outcome.NOT_OFFERED), REFUSED), REFUSED),
        (REFUSED, (PASSED, REFUSED), Outcome.UNSTABLE),
        (replace(REFUSED, outcome=Outcome.PASS), (REFUSED, REFUSED), Outcome.UNSTABLE),
        (TIMED_OUT, (TIMED_OUT, TIMED_OUT), TIMED_OUT),
        (TIMED_OUT, (None, None), TIMED_OUT),
        (TIMED_OUT, (PASSED, PASSED), PASSED),
        (TIMED_OUT, (KNOWN, KNOWN), KNOWN),
        (TIMED_OUT, (FAILED, replace(FAILED, message="others")), replace(FAILED, message="others")),
        (TIMED_OUT, (TIMED_OUT, PASSED), Outcome.UNSTABLE),
        (TIMED_OUT, (KNOWN, PASSED), Outcome.UNSTABLE),
    ],
)
def test_settle_of_repeats_keeps_or_replaces_the_verdict(
    verdict: TestVerdict, repeats: tuple[TestVerdict | None, ...], expected: TestVerdict | Outcome
) -> None:
    settled = settle(verdict, repeats)
    finished = [repeat for repeat in repeats if repeat is not None]
    assert settled.repeats == tuple(f"{v.outcome} ({v.signature})" if v.signature else v.outcome for v in finished)
    if isinstance(expected, Outcome):
        expected = replace(verdict, outcome=expected, message=settled.message)
    assert replace(settled, repeats=()) == expected


@pytest.fixture
def record() -> Record:
    """A record of tests of the inventory."""
    code = next(iter(inventory().values()))
    passed = TestVerdict(code.id, code.clause, Outcome.PASS, seed=0)
    absent = replace(passed, test=f"{code.clause}/expectation: differs", outcome=Outcome.ERROR)
    clauses = {**BASE.clauses, code.clause: next(iter(BASE.clauses.values()))}
    return replace(BASE, clauses=clauses, verdicts=(passed, absent, replace(absent, test=f"{code.clause}/every test")))


@pytest.mark.parametrize(
    ("former", "changes", "is_due"),
    [
        (Outcome.PASS, {"outcome": Outcome.PASS}, False),
        (Outcome.PASS, {"outcome": Outcome.FAIL, "signature": "differs"}, True),
        (Outcome.PASS, {"outcome": Outcome.KNOWN, "signature": "differs"}, True),
        (Outcome.PASS, {"outcome": Outcome.UNSUPPORTED, "signature": "scaling"}, True),
        (Outcome.PASS, {"outcome": Outcome.KNOWN, "signature": "differs", "setup_hash": "other"}, False),
        (Outcome.PASS, {"outcome": Outcome.TIMEOUT}, True),
        (Outcome.TIMEOUT, {"outcome": Outcome.TIMEOUT}, False),
    ],
)
def test_due_has_what_is_worse_than_the_baseline(
    monkeypatch: pytest.MonkeyPatch, record: Record, former: Outcome, changes: dict[str, Any], is_due: bool
) -> None:
    *unchanged, verdict = sorted(record.verdicts, key=lambda v: "/test_" in v.test)
    old, new = (
        replace(record, verdicts=(replace(verdict, **fields), *unchanged)) for fields in ({"outcome": former}, changes)
    )
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), old))
    assert due(new) == ([verdict.test] if is_due else [])
    assert due(replace(new, status="interrupted")) == []
    monkeypatch.setattr(retry, "former", lambda _: None)
    assert len(due(new)) == new.verdicts[0].outcome.bad


def test_judge_without_a_record_repeats_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobs, "LAST_RUNS", tmp_path)
    monkeypatch.setattr(jobs, "run_to_end", lambda *_: 1)
    monkeypatch.setattr(jobs, "repeat", lambda *_: pytest.fail("something is repeated"))
    assert jobs.judge("reference", "", "cpu", 1, ["-k", "flaky"]) == 1


def test_lines_of_repeats_count_those_left_out() -> None:
    verdict = TestVerdict("s.x/test_a", "s.x", Outcome.UNSTABLE, repeats=("pass", "pass"))
    repeated = retry.RepeatResults(replace(BASE, verdicts=(verdict,)), (verdict.test,), (verdict.test,), omitted=3)
    assert repeated.lines == [
        "unstable, regressions that did not repeat in 2 new processes: 1 (test_a)",
        f"not repeated, beyond the limit of {retry.MOST}: 3 more",
    ]
