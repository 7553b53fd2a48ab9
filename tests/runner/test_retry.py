"""What got worse is repeated in new processes before a run ends: what does not come out so again is unstable."""

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
from tests.support.suite_runs import checkout, conformance, hang_limit

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


NEW = "fail (restless) in the run, pass and pass when repeated in a new process: steadiness"
SETTLED = {
    "test_flaky": (Outcome.UNSTABLE, ("pass", "pass"), NEW),
    "test_dies": (Outcome.UNSTABLE, ("pass", "pass"), "crash"),
    "test_fails": (Outcome.FAIL, ("fail (differs)",) * 2, ""),
    "test_passes": (Outcome.PASS, (), ""),
    "test_sleeps_at_first": (Outcome.PASS, ("pass", "pass"), ""),
}
"""Outcome, repeats and begin of the message of each test of the suite."""


def test_run_repeats_what_got_worse_settles_it_and_tells_of_it(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout", some=SUITE)
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
    assert [(one.case, one.value) for one in record.observations] == [("test_sleeps_at_first", False)]
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    for case, (outcome, repeats, message) in SETTLED.items():
        assert (verdicts[case].outcome, verdicts[case].repeats) == (outcome, repeats), case
        assert verdicts[case].message.startswith(message)
    assert verdicts["test_flaky"].signature == "restless"


def test_run_goes_on_after_more_deaths_than_xdist_allows_and_repeats_none_of_its_own_draws(tmp_path: Path) -> None:
    arguments = ("reference", f"--record={tmp_path / 'r.json'}", "--profile=nightly", "--tests=all", "--numprocesses=1")
    result = conformance("run", "--device=cpu", *arguments, root=checkout(tmp_path / "checkout", dying=DYING))
    record = load(tmp_path / "r.json")
    assert (result.status, record.status) == (1, "complete"), result.lines
    assert [v.outcome for v in record.verdicts if v.case.startswith("test_dies")] == [Outcome.CRASH] * 5
    assert "repeat" not in result.output.replace("repeat: ", "")


FAILED = TestVerdict("c/t", "c", Outcome.FAIL, signature="differs", message="numbers")
CALM = replace(FAILED, outcome=Outcome.KNOWN)
LATE = replace(FAILED, outcome=Outcome.TIMEOUT, signature="timeout")
PASSED = replace(FAILED, outcome=Outcome.PASS, signature="", message="")
REFUSED = replace(FAILED, outcome=Outcome.UNSUPPORTED, signature="precision.O1-float16")


@pytest.mark.parametrize(
    ("first", "repeats", "wanted"),
    [
        (FAILED, (FAILED, FAILED), FAILED),
        (FAILED, (FAILED, PASSED), Outcome.UNSTABLE),
        (FAILED, (FAILED, replace(FAILED, outcome=Outcome.ERROR, signature="raises-ValueError")), FAILED),
        (FAILED, (CALM, FAILED), Outcome.UNSTABLE),
        (FAILED, (None, FAILED), FAILED),
        (FAILED, (None, None), FAILED),
        (CALM, (CALM, CALM), CALM),
        (CALM, (CALM, replace(CALM, signature="other")), Outcome.UNSTABLE),
        (CALM, (PASSED, CALM), Outcome.UNSTABLE),
        (REFUSED, (replace(REFUSED, signature="precision.O1-bfloat16"), REFUSED), REFUSED),
        (REFUSED, (replace(REFUSED, outcome=Outcome.NOT_OFFERED), REFUSED), REFUSED),
        (REFUSED, (PASSED, REFUSED), Outcome.UNSTABLE),
        (replace(REFUSED, outcome=Outcome.PASS), (REFUSED, REFUSED), Outcome.UNSTABLE),
        (LATE, (LATE, LATE), LATE),
        (LATE, (None, None), LATE),
        (LATE, (PASSED, PASSED), PASSED),
        (LATE, (CALM, CALM), CALM),
        (LATE, (FAILED, replace(FAILED, message="others")), replace(FAILED, message="others")),
        (LATE, (LATE, PASSED), Outcome.UNSTABLE),
        (LATE, (CALM, PASSED), Outcome.UNSTABLE),
    ],
)
def test_a_verdict_stands_if_its_repeats_say_so_and_after_a_timeout_they_judge(
    first: TestVerdict, repeats: tuple[TestVerdict | None, ...], wanted: TestVerdict | Outcome
) -> None:
    settled = settle(first, repeats)
    there = [repeat for repeat in repeats if repeat is not None]
    assert settled.repeats == tuple(f"{v.outcome} ({v.signature})" if v.signature else v.outcome for v in there)
    if isinstance(wanted, Outcome):
        wanted = replace(first, outcome=wanted, message=settled.message)
    assert replace(settled, repeats=()) == wanted


@pytest.fixture
def real() -> Record:
    """A record of tests that are there."""
    code = next(iter(inventory().values()))
    passed = TestVerdict(code.id, code.clause, Outcome.PASS, seed=0)
    gone = replace(passed, test=f"{code.clause}/expectation: differs", outcome=Outcome.ERROR)
    clauses = {**BASE.clauses, code.clause: next(iter(BASE.clauses.values()))}
    return replace(BASE, clauses=clauses, verdicts=(passed, gone, replace(gone, test=f"{code.clause}/every test")))


@pytest.mark.parametrize(
    ("former", "changes", "asked"),
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
def test_what_is_worse_than_the_baseline_is_due(
    monkeypatch: pytest.MonkeyPatch, real: Record, former: Outcome, changes: dict[str, Any], asked: bool
) -> None:
    *others, verdict = sorted(real.verdicts, key=lambda v: "/test_" in v.test)
    old, new = (replace(real, verdicts=(replace(verdict, **own), *others)) for own in ({"outcome": former}, changes))
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), old))
    assert due(new) == ([verdict.test] if asked else [])
    assert due(replace(new, status="interrupted")) == []
    monkeypatch.setattr(retry, "former", lambda _: None)
    assert len(due(new)) == new.verdicts[0].outcome.bad


def test_judge_without_a_record_repeats_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jobs, "LAST_RUNS", tmp_path)
    monkeypatch.setattr(jobs, "run_to_end", lambda *_: 1)
    monkeypatch.setattr(jobs, "repeat", lambda *_: pytest.fail("something is repeated"))
    assert jobs.judge("reference", "", "cpu", 1, ["-k", "flaky"]) == 1


def test_what_is_left_out_is_told_whatever_became_of_the_others() -> None:
    verdict = TestVerdict("s.x/test_a", "s.x", Outcome.UNSTABLE, repeats=("pass", "pass"))
    repeated = retry.RepeatResults(replace(BASE, verdicts=(verdict,)), (verdict.test,), (verdict.test,), omitted=3)
    assert repeated.lines == [
        "unstable, regressions that did not repeat in 2 new processes: 1 (test_a)",
        f"not repeated, beyond the limit of {retry.MOST}: 3 more",
    ]
