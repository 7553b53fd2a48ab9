"""What got worse is repeated in new processes before a run ends: what does not come out so again is unstable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.runner import retry
from conformance.runner.retry import due, repeatable, settle
from conformance.test_ids.inventory import inventory
from results.record.model import TestVerdict
from results.record.outcomes import Outcome
from results.record.reading import Record, load, write
from tests.support.small_record import BASE
from tests.support.suite_runs import Ended, checkout, conformance, hang_limit

SUITE = """
import os

from conformance.checks.api import Subject, Verdict, clause

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
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"), some=SUITE)


def conformance_run(root: Path, folder: Path, *words: str) -> Ended:
    """Runs the suites of a checkout by the command."""
    changes = {"FLAKY": str(folder / "first"), "TMPDIR": str(folder)}
    return conformance("run", "--device=cpu", "tests.support.misbehaving:Flaky", *words, root=root, **changes)


def test_what_does_not_fail_again_is_unstable(copied: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ended = conformance_run(copied, tmp_path, f"--record={path}", "-k", "flaky or passes or dies")
    record = load(path)
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    assert ended.status == 0, ended.lines
    assert verdicts["test_flaky"].outcome is verdicts["test_dies"].outcome is Outcome.UNSTABLE
    assert verdicts["test_flaky"].repeats == verdicts["test_dies"].repeats == ("pass", "pass")
    message = "fail (restless) in the run, pass and pass when repeated in a new process: steadiness"
    assert verdicts["test_flaky"].message.startswith(message)
    assert verdicts["test_flaky"].signature == "restless"
    assert (verdicts["test_passes"].outcome, verdicts["test_passes"].repeats) == (Outcome.PASS, ())
    assert record.status == "partial"
    assert "repeating 2 verdicts that got worse, 2 times, in new processes" in ended.output
    assert "unstable, regressions that did not repeat in 2 new processes: 2 (test_dies, test_flaky)" in ended.output
    assert not list(tmp_path.glob("conformance-*"))


def test_what_fails_again_stays_a_failure(copied: Path, tmp_path: Path) -> None:
    ended = conformance_run(copied, tmp_path)
    (path,) = (copied / "results" / "records").glob("tests*.json")
    verdicts = {verdict.case: verdict for verdict in load(path).verdicts}
    assert ended.status == 1
    assert (verdicts["test_fails"].outcome, verdicts["test_flaky"].outcome) == (Outcome.FAIL, Outcome.UNSTABLE)
    assert verdicts["test_fails"].repeats == ("fail (differs)", "fail (differs)")
    assert "regressions that repeated in 2 new processes: 1 (test_fails)" in ended.output


SLEEPING = """
import time

from conformance.checks.api import Subject, Verdict, clause

@clause("scaling.automaton")
def test_sleeps_at_first(subject: Subject, verdict: Verdict) -> None:
    if not subject.framework.steady():
        time.sleep(3600.0)
    verdict.observe("sleeps", False)

@clause("scaling.automaton")
def test_sleeps() -> None:
    time.sleep(3600.0)
"""


def test_a_timeout_is_one_only_if_the_test_times_out_alone_too(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    words = (f"--record={path}", f"--timeout={hang_limit(3.0):g}", "-k", "sleeps")
    ended = conformance_run(checkout(tmp_path, sleeping=SLEEPING), tmp_path, *words)
    record = load(path)
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    assert (verdicts["test_sleeps_at_first"].outcome, verdicts["test_sleeps"].outcome) == (
        Outcome.PASS,
        Outcome.TIMEOUT,
    )
    assert verdicts["test_sleeps_at_first"].repeats == ("pass", "pass")
    assert verdicts["test_sleeps"].repeats == ("timeout (timeout)",) * 2
    assert [(observation.case, observation.value) for observation in record.observations] == [
        ("test_sleeps_at_first", False)
    ]
    assert ended.status == 1
    assert "timed out while other tests ran, and not when repeated alone: 1 (test_sleeps_at_first)" in ended.output
    assert "regressions that repeated in 2 new processes: 1 (test_sleeps)" in ended.output


DYING = """
import os

import pytest

from conformance.checks.api import Subject, Verdict, clause

@clause("scaling.automaton")
@pytest.mark.parametrize("number", range(14))
def test_dies(subject: Subject, verdict: Verdict, number: int) -> None:
    os.abort()
"""


def test_a_run_goes_on_however_many_tests_take_their_process_with_them(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ended = conformance_run(
        checkout(tmp_path, dying=DYING), tmp_path, f"--record={path}", "--profile=nightly", "--tests=all"
    )
    record = load(path)
    assert ended.status == 1, ended.lines
    assert record.status == "complete"
    died = [verdict.outcome for verdict in record.verdicts if verdict.case.startswith("test_dies")]
    assert died == [Outcome.CRASH] * 14


def test_without_a_record_nothing_is_repeated(copied: Path, tmp_path: Path) -> None:
    ended = conformance_run(copied, tmp_path, "-k", "flaky")
    assert ended.status == 1
    assert "repeat" not in ended.output.replace("repeat: python", "")


FAILED = TestVerdict("c/t", "c", Outcome.FAIL, signature="differs", message="numbers")
CALM = replace(FAILED, outcome=Outcome.KNOWN)
LATE = replace(FAILED, outcome=Outcome.TIMEOUT, signature="timeout")
PASSED = replace(FAILED, outcome=Outcome.PASS, signature="", message="")
REFUSED = replace(FAILED, outcome=Outcome.UNSUPPORTED, signature="precision.O1-float16")


@pytest.mark.parametrize(
    ("first", "repeats", "outcome"),
    [
        (FAILED, (FAILED, FAILED), Outcome.FAIL),
        (FAILED, (FAILED, replace(FAILED, outcome=Outcome.PASS, signature="")), Outcome.UNSTABLE),
        (FAILED, (FAILED, replace(FAILED, outcome=Outcome.ERROR, signature="raises-ValueError")), Outcome.FAIL),
        (FAILED, (CALM, FAILED), Outcome.UNSTABLE),
        (FAILED, (None, FAILED), Outcome.FAIL),
        (FAILED, (None, None), Outcome.FAIL),
        (CALM, (CALM, CALM), Outcome.KNOWN),
        (CALM, (CALM, replace(CALM, signature="other")), Outcome.UNSTABLE),
        (CALM, (replace(CALM, outcome=Outcome.PASS, signature=""), CALM), Outcome.UNSTABLE),
        (REFUSED, (replace(REFUSED, signature="precision.O1-bfloat16"), REFUSED), Outcome.UNSUPPORTED),
        (REFUSED, (replace(REFUSED, outcome=Outcome.NOT_OFFERED), REFUSED), Outcome.UNSUPPORTED),
        (REFUSED, (replace(REFUSED, outcome=Outcome.PASS, signature=""), REFUSED), Outcome.UNSTABLE),
        (replace(REFUSED, outcome=Outcome.PASS), (REFUSED, REFUSED), Outcome.UNSTABLE),
    ],
)
def test_a_verdict_stands_if_its_repeats_say_so(
    first: TestVerdict, repeats: tuple[TestVerdict | None, ...], outcome: Outcome
) -> None:
    settled = settle(first, repeats)
    assert settled.outcome is outcome
    assert len(settled.repeats) == sum(each is not None for each in repeats)
    assert replace(settled, outcome=first.outcome, message=first.message, repeats=()) == first


@pytest.mark.parametrize(
    ("repeats", "wanted"),
    [
        ((LATE, LATE), LATE),
        ((None, None), LATE),
        ((PASSED, PASSED), PASSED),
        ((CALM, CALM), CALM),
        ((FAILED, replace(FAILED, message="others")), replace(FAILED, message="others")),
        ((LATE, PASSED), replace(LATE, outcome=Outcome.UNSTABLE)),
        ((CALM, PASSED), replace(LATE, outcome=Outcome.UNSTABLE)),
    ],
)
def test_a_test_that_timed_out_is_judged_by_its_repeats(
    repeats: tuple[TestVerdict | None, ...], wanted: TestVerdict
) -> None:
    settled = settle(LATE, repeats)
    if wanted.outcome is Outcome.UNSTABLE:
        wanted = replace(wanted, message=settled.message)
    assert replace(settled, repeats=()) == wanted
    assert len(settled.repeats) == sum(each is not None for each in repeats)


def test_a_timeout_of_the_baseline_is_not_repeated(monkeypatch: pytest.MonkeyPatch, real: Record) -> None:
    late = replace(
        real, verdicts=tuple(replace(v, outcome=Outcome.TIMEOUT) if "/test_" in v.test else v for v in real.verdicts)
    )
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), late))
    assert due(late) == []
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), real))
    assert len(due(late)) == 1
    monkeypatch.setattr(retry, "former", lambda _: None)
    assert len(due(late)) == 1


@pytest.fixture
def real() -> Record:
    """A record of tests that are there."""
    code = next(iter(inventory().values()))
    passed = TestVerdict(code.id, code.clause, Outcome.PASS, seed=0)
    gone = replace(passed, test=f"{code.clause}/expectation: differs", outcome=Outcome.ERROR)
    clauses = {**BASE.clauses, code.clause: next(iter(BASE.clauses.values()))}
    return replace(BASE, clauses=clauses, verdicts=(passed, gone, replace(gone, test=f"{code.clause}/every test")))


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"outcome": Outcome.PASS}, False),
        ({"outcome": Outcome.FAIL, "signature": "differs"}, True),
        ({"outcome": Outcome.KNOWN, "signature": "differs"}, True),
        ({"outcome": Outcome.UNSUPPORTED, "signature": "scaling"}, True),
        ({"outcome": Outcome.KNOWN, "signature": "differs", "setup_hash": "other"}, False),
    ],
)
def test_what_is_worse_than_the_baseline_is_due(
    monkeypatch: pytest.MonkeyPatch, real: Record, changes: dict[str, object], asked: bool
) -> None:
    monkeypatch.setattr(retry, "former", lambda _: (Path("baseline.json"), real))
    (verdict,) = (v for v in real.verdicts if "/test_" in v.test)
    new = replace(real, verdicts=(replace(verdict, **changes), *(v for v in real.verdicts if v != verdict)))  # type: ignore[arg-type]
    assert due(new) == ([verdict.test] if asked else [])
    assert due(replace(new, status="interrupted")) == []


def test_an_interrupted_repeat_leaves_the_record(monkeypatch: pytest.MonkeyPatch, real: Record, tmp_path: Path) -> None:
    bad = replace(real, verdicts=tuple(replace(verdict, outcome=Outcome.FAIL) for verdict in real.verdicts))
    path = tmp_path / "r.json"
    write(path, bad)
    content = path.read_bytes()

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(retry, "former", lambda _: None)
    monkeypatch.setattr(retry, "run_to_end", stopped)
    with pytest.raises(KeyboardInterrupt):
        retry.repeat(path, ["pytest"])
    assert path.read_bytes() == content


def test_runs_that_draw_their_own_cases_are_not_repeated() -> None:
    assert repeatable(["-k", "scaling"])
    assert not repeatable(["--profile=nightly"])
    assert not repeatable(["--profile", "nightly"])


def test_what_is_left_out_is_told_whatever_became_of_the_others() -> None:
    verdict = TestVerdict("s.x/test_a", "s.x", Outcome.UNSTABLE, repeats=("pass", "pass"))
    repeated = retry.RepeatResults(replace(BASE, verdicts=(verdict,)), (verdict.test,), (verdict.test,), left=3)
    assert repeated.lines == [
        "unstable, regressions that did not repeat in 2 new processes: 1 (test_a)",
        f"not repeated, beyond the limit of {retry.MOST}: 3 more",
    ]
