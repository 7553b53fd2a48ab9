"""Every doctored record lands in its own class, and records of a changed suite are reported for what they are."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from conformance.cli.records import compare as command
from conformance.runner import identity
from results.compare.changes import ChangeKind
from results.compare.comparison import Comparison, Comparisons, FailOn, compare
from results.compare.numbers import Movement
from results.record.reading import Curves, Outcome, Record, RunSetup, Tensors, TestVerdict, write
from results.show.differences import document, headline, markdown, to_text, verdict
from tests.support.doctored import (
    baseline,
    with_curves,
    with_errors,
    with_losses,
    with_tensors,
    with_variant,
    with_verdicts,
)
from tests.support.suite_runs import ROOT


def kinds(comparison: Comparison) -> set[ChangeKind]:
    return {change.kind for change in comparison.changes}


def movements(comparison: Comparison) -> dict[str, Movement]:
    return {one.test.partition("/")[2]: one.movement for one in comparison.numbers}


def said(comparison: Comparison) -> str:
    """What the three forms have in common: the text on one line."""
    return " ".join(to_text(Comparisons((comparison,))).split())


@pytest.fixture(scope="module")
def parity() -> str:
    record = baseline()
    result = (
        v.test for v in record.verdicts if "test_float32_sgd_parity[digits-mlp]" in v.test and v.outcome is Outcome.PASS
    )
    return next(result)


def test_the_identical_record_is_identical() -> None:
    result = compare(baseline(), baseline())
    assert result.identical
    assert set(movements(result).values()) == {Movement.IDENTICAL}
    assert len(result.numbers) > 60
    assert ": identical (" in headline(result)
    assert said(result).endswith("nothing is worse: identical")
    assert "**Conformance: nothing is worse: identical.**" in markdown(Comparisons((result,)))
    assert document(Comparisons((result,)))["pairs"][0]["identical"] is True


def test_losses_a_thousandth_off_drift_where_rounding_does_not_explain_it() -> None:
    old = baseline()
    result = compare(old, with_losses(old, lambda loss: loss * 1.001))
    assert kinds(result) == {ChangeKind.DRIFT}
    far = {
        trace.case
        for trace in old.traces
        if trace.key == "loss"
        and any(
            0.001 * abs(a) > bound < math.inf
            for a, bound in zip(trace.curves["loss"], trace.curves["bound"], strict=True)
        )
    }
    assert len(far) > 20
    assert {case for case, movement in movements(result).items() if movement is Movement.DRIFT} == far
    assert Movement.ROUNDING in movements(result).values(), "in bfloat16 a thousandth is rounding"
    assert (result.status, result.drifted) == (0, len(far))
    assert all("at update 0 is the first that moved" in change.detail for change in result.changes)
    assert f"{len(far)} tests drifted" in said(result)


def test_an_error_next_to_its_bound_drifts(parity: str) -> None:
    old, new = (with_errors(baseline(), parity, share) for share in (0.01, 0.99))
    result = compare(old, new)
    assert [(c.kind, c.subject) for c in result.changes] == [(ChangeKind.DRIFT, parity)]
    assert "99 times as large, 0.99 of its bound" in result.changes[0].detail
    counted = document(Comparisons((result,)))["pairs"][0]["numbers"]["counts"]
    assert counted == {"identical": len(result.numbers) - 1, "drift": 1}
    assert "1 drift" in headline(result)
    assert not compare(new, old).changes, "smaller errors are rounding"


@pytest.mark.parametrize(
    ("before", "after", "drifts"),
    [
        (0.01, 0.49, False),
        (0.01, 0.51, True),
        (0.3, 0.6, False),
        (0.2, 0.61, True),
        (0.0, 0.6, True),
        (0.6, 0.6, False),
    ],
)
def test_an_error_drifts_if_it_tripled_and_passes_half_of_its_bound(
    before: float, after: float, drifts: bool, parity: str
) -> None:
    result = compare(*(with_errors(baseline(), parity, share) for share in (before, after)))
    assert kinds(result) == ({ChangeKind.DRIFT} if drifts else set())
    assert (movements(result)[parity.partition("/")[2]] is Movement.IDENTICAL) is (before == after)


def test_another_companion_is_said_with_the_command_that_crosses_it() -> None:
    old = baseline()
    result = compare(
        old, with_variant(old, packages={"numpy": "2.5.0", "protobuf": "7.0"}, environment={"threads": "2"})
    )
    assert (result.changes, result.status, result.identical) == ((), 0, False)
    assert "companion packages, which may be the cause: numpy: 2.4.6 → 2.5.0" in said(result)
    assert "TORCH_VERSION=2.13.0 NUMPY_VERSION=2.4.6 tox -e torch" in said(result)
    assert "1 other package differs" in said(result)
    assert "threads: 1 → 2: sums may round differently" in said(result)
    assert "no change; numbers:" in headline(result)
    assert "protobuf: 6.33.1 → 7.0" in markdown(Comparisons((result,)))


def test_last_bits_are_rounding_and_the_first_tensor_is_named(parity: str) -> None:
    old, case = baseline(), parity.partition("/")[2]
    moved = with_losses(old, lambda loss: float(np.nextafter(np.float32(loss), np.float32(9.0))))
    new = with_tensors(moved, case, {"output/2.body.1": 3, "gradient/3": 1})
    result = compare(old, new)
    assert (result.changes, result.status, result.identical) == ((), 0, False)
    assert movements(result)[case] is Movement.ROUNDING
    assert Movement.DRIFT not in movements(result).values()
    (entry,) = (
        one for one in document(Comparisons((result,)))["pairs"][0]["numbers"]["tests"] if one["test"] == parity
    )
    assert entry["tensor"] == "output/2.body.1 (bfloat16), by 3 units in the last place of its sampled values"
    assert entry["movement"] == "rounding"
    text = markdown(Comparisons((result,)))
    assert "output/2.body.1 (bfloat16), by 3 units" in text[text.index("<details><summary>Numbers: ") :]
    assert "body" not in said(result), "rounding is counted, not listed"


def test_a_drift_and_a_failure_name_the_first_tensor_that_differs(parity: str) -> None:
    old, case = with_errors(baseline(), parity, 0.01), parity.partition("/")[2]
    new = with_tensors(with_errors(old, parity, 0.99), case, {"output/3": 1})
    message = "first tensor that differs: output/3 (bfloat16), by 1 unit in the last place"
    (change,) = compare(old, new).changes
    assert change.kind is ChangeKind.DRIFT
    assert message in change.detail
    failing = with_verdicts(new, lambda v: replace(v, outcome=Outcome.FAIL) if v.test == parity else v)
    (failure,) = compare(old, failing).changes
    assert failure.kind is ChangeKind.NEWLY_FAILING
    assert message in failure.detail
    assert movements(compare(old, failing))[case] is Movement.FAILING


def test_without_bounds_of_losses_the_spread_serves() -> None:
    old = baseline()
    old = with_curves(old, lambda curves: {name: points for name, points in curves.items() if name != "bound"})
    assert kinds(compare(old, with_losses(old, lambda loss: loss * 1.001))) == {ChangeKind.DRIFT}
    assert not compare(old, with_losses(old, lambda loss: loss * (1.0 + 1e-9))).changes


def test_where_the_oracle_is_another_one_errors_are_compared() -> None:
    old = baseline()

    def shift_curves(by: float, *names: str) -> Callable[[Curves], Curves]:
        return lambda curves: {**curves, **{name: tuple(x + by for x in curves[name]) for name in names}}

    shifted = with_curves(old, shift_curves(1.0, "loss", "exact"))
    result = compare(old, shifted)
    assert Movement.DRIFT not in movements(result).values()
    assert (kinds(result), result.status) == ({ChangeKind.ORACLE_CHANGED}, 1)
    drifted = compare(old, with_curves(old, shift_curves(1.0, "exact")))
    assert not [one for one in drifted.numbers if one.movement is Movement.DRIFT], "the losses are the very same"
    far = compare(old, with_curves(shifted, shift_curves(0.5, "loss")))
    assert kinds(far) == {ChangeKind.DRIFT, ChangeKind.ORACLE_CHANGED}
    details = [change.detail for change in far.changes if change.kind is ChangeKind.DRIFT]
    assert all("the oracle itself differs, so errors are compared" in detail for detail in details)


@pytest.mark.parametrize(
    ("fail_on", "drift", "worse", "refused"), [("worse", 0, 1, 2), ("drift", 1, 1, 2), ("never", 0, 0, 2)]
)
def test_what_a_comparison_fails_on_can_be_chosen(
    fail_on: FailOn, drift: int, worse: int, refused: int, parity: str, tmp_path: Path
) -> None:
    old, new = (with_errors(baseline(), parity, share) for share in (0.01, 0.99))
    more = (replace(m, samples=tuple(b + 1 for b in m.samples)) if m.unit == "B" else m for m in old.measurements)
    grown, other = replace(old, measurements=tuple(more)), replace(old, seed=1)
    for record, status in ((new, drift), (grown, worse), (other, refused), (old, 0)):
        assert Comparisons((compare(old, record),)).exit_status(fail_on) == status
    for name, record in (("old", old), ("new", new)):
        write(tmp_path / f"{name}.json", record)
    arguments = [f"{tmp_path}/old.json", f"{tmp_path}/new.json", f"--fail-on={fail_on}", "--format=json"]
    completed = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert completed.return_value == drift
    assert json.loads(completed.output)["verdict"] == "nothing is worse, 1 test drifted"


AREAS = dict.fromkeys(("adapter", "contract", "expectations", "fixtures", "judging", "oracle"), "0" * 16)

Doctor = Callable[[Record], Record]


def old() -> Record:
    """The baseline, as this suite would have written it, with a failure that is known."""
    record = baseline()
    suite = replace(record.suite, commit="a" * 40, areas={**AREAS, "specification": "0" * 16})
    return replace(record, suite=suite)


def suite(**fields: Any) -> Doctor:
    return lambda record: replace(record, suite=replace(record.suite, **fields))


def areas(*names: str) -> Doctor:
    def doctor(record: Record) -> Record:
        changed = {**record.suite.areas, **dict.fromkeys(names, "f" * 16)}
        return replace(record, suite=replace(record.suite, areas=changed, commit="b" * 40))

    return doctor


def every(change: Callable[[TestVerdict], TestVerdict]) -> Doctor:
    return lambda record: with_verdicts(record, change)


def checks(**fields: Any) -> Doctor:
    return every(lambda v: replace(v, checks=tuple(replace(check, **fields) for check in v.checks)))


def scale_derivation(key: str, times: float, bound: float = 1.0) -> Doctor:
    def change(one: TestVerdict) -> TestVerdict:
        changed = []
        for check in one.checks:
            if isinstance(check.bound, float) and isinstance(part := check.derivation.get(key), int | float):
                check = replace(check, bound=bound * check.bound, derivation={**check.derivation, key: times * part})
            changed.append(check)
        return replace(one, checks=tuple(changed))

    return every(change)


def clauses(**fields: Any) -> Doctor:
    return lambda record: replace(
        record, clauses={name: replace(text, **fields) for name, text in record.clauses.items()}
    )


def curves(factor: float, *names: str) -> Doctor:
    def change(course: Curves) -> Curves:
        return {**course, **{name: tuple(factor * x for x in course[name]) for name in names if name in course}}

    return lambda record: with_curves(record, change)


def first(change: Callable[[TestVerdict], TestVerdict], chosen: Callable[[TestVerdict], bool]) -> Doctor:
    def doctor(record: Record) -> Record:
        index = next(i for i, one in enumerate(record.verdicts) if chosen(one))
        verdicts = list(record.verdicts)
        verdicts[index] = change(verdicts[index])
        return replace(record, verdicts=tuple(verdicts))

    return doctor


def bounded_verdict(one: TestVerdict) -> bool:
    return one.outcome is Outcome.PASS and any(isinstance(check.bound, float) for check in one.checks)


def norms(factor: float) -> Doctor:
    def double(one: Tensors) -> Tensors:
        return replace(one, arrays=tuple(replace(array, norm=factor * array.norm) for array in one.arrays))

    return lambda record: replace(record, tensors=tuple(map(double, record.tensors)))


def runs(change: Callable[[RunSetup], RunSetup]) -> Doctor:
    return every(lambda v: replace(v, runs=tuple(map(change, v.runs))))


def outcomes(old: Outcome, **fields: Any) -> Doctor:
    return every(lambda v: replace(v, **fields) if v.outcome is old else v)


def keep_verdicts(keep: Callable[[Sequence[TestVerdict]], Sequence[TestVerdict]]) -> Doctor:
    return lambda record: replace(record, verdicts=tuple(keep(record.verdicts)))


def without_functions(verdicts: Sequence[TestVerdict]) -> Sequence[TestVerdict]:
    functions = sorted({one.test.partition("[")[0] for one in verdicts})[:-20]
    return [one for one in verdicts if one.test.partition("[")[0] in functions]


def without_oracle(course: Curves) -> Curves:
    return {name: points for name, points in course.items() if name != "exact"}


def raise_revision(record: Record) -> Record:
    texts = {n: replace(t, revision=t.revision + (n == "scaling.automaton")) for n, t in record.clauses.items()}
    return replace(record, clauses=texts)


PASSES = {"outcome": Outcome.PASS, **dict.fromkeys(("signature", "message", "reason", "finding", "link"), "")}
FEWER, WIDER, MISSING = ChangeKind.FEWER_CHECKS, ChangeKind.BOUND_WIDER, ChangeKind.TRACE_MISSING
APART, CONTRADICTED, ORACLE = ChangeKind.NOT_COMPARABLE, ChangeKind.CONTRADICTED, ChangeKind.ORACLE_CHANGED
LOWERED, RECIPES, CANNOT = ChangeKind.LEVEL_LOWERED, "different training recipes", 2
UNJUDGED, UNCOMPARED = ChangeKind.NEWLY_UNJUDGED, "tests were not compared; the suite itself differs: judging"
OVERRULED = first(lambda v: replace(v, checks=(replace(v.checks[0], passed=False), *v.checks[1:])), bounded_verdict)
LARGER = first(
    lambda v: scale_derivation("multiplier", 1.25, 1.25)(replace(old(), verdicts=(v,))).verdicts[0],
    lambda v: bounded_verdict(v) and any("multiplier" in check.derivation for check in v.checks),
)
DOCTORED: Mapping[str, tuple[Sequence[Doctor], int, ChangeKind | None, str]] = {
    # the twelve that were once reported as "nothing is worse"
    "failures pass": ([areas("judging"), outcomes(Outcome.KNOWN, **PASSES)], 1, CONTRADICTED, "suite differs: judging"),
    "all checks removed": ([every(lambda v: replace(v, checks=()))], 1, FEWER, "0 checks"),
    "all traces removed": ([lambda record: replace(record, traces=())], 1, MISSING, "curves 'loss'"),
    "bounds wider by their multiplier": ([scale_derivation("multiplier", 1000, 1000)], 1, WIDER, "multiplier"),
    "recipes changed": ([runs(lambda r: RunSetup(r.fixture, {**r.recipe, "clip": 0.001}))], CANNOT, APART, RECIPES),
    "all clauses are SHOULD": ([clauses(level="SHOULD")], 1, LOWERED, "MUST → SHOULD"),
    "all gradient norms doubled": ([norms(2.0)], 0, ChangeKind.DRIFT, "tests drifted"),
    "losses and oracle doubled": ([curves(2.0, "loss", "exact")], 1, ORACLE, "oracle changed"),
    "another suite version": ([suite(version="9.9")], 0, None, "suite version: 0.1.0 → 9.9"),
    "all revisions raised": ([clauses(revision=7)], CANNOT, None, "cannot be judged"),
    "judging code changed": ([areas("judging")], 0, None, "the suite itself differs: judging"),
    "adapter and contract": ([areas("adapter", "contract")], 0, None, "the suite differs: adapter, contract"),
    # and others
    "half of the checks": ([every(lambda v: replace(v, checks=v.checks[: len(v.checks) // 2]))], 1, FEWER, "missing: "),
    "one check": ([first(lambda v: replace(v, checks=v.checks[1:]), bounded_verdict)], 1, FEWER, "fewer checks"),
    "one check fails, the test passes": ([OVERRULED], 1, CONTRADICTED, "passes against its own checks"),
    "every check fails and the tests pass": ([checks(passed=False)], 1, CONTRADICTED, "got "),
    "bounds infinite": ([checks(bound=math.inf)], 1, WIDER, "→ inf"),
    "bounds gone": ([checks(bound=None)], 1, WIDER, "bound wider"),
    "bounds NaN": ([checks(bound=math.nan)], 1, WIDER, "bound wider"),
    "multiplier of one test a little larger": ([LARGER], 1, WIDER, "4 → 5"),
    "multipliers smaller": ([scale_derivation("multiplier", 0.5, 0.5)], 0, ChangeKind.BOUND_CHANGED, "bound changed"),
    "bounds 100 times as wide by their spread": ([scale_derivation("spread", 100, 100)], 1, WIDER, "bound"),
    "fingerprints removed": ([lambda record: replace(record, tensors=())], 1, MISSING, "fingerprints"),
    "curves of the reference": ([lambda r: with_curves(r, without_oracle)], 1, MISSING, "curves 'exact'"),
    "spreads of losses wider": ([curves(100.0, "spread")], 1, WIDER, "spread of the losses: × 100"),
    "bounds of losses wider": ([curves(1000.0, "bound")], 1, WIDER, "bound of the losses: × 1000"),
    "oracle losses alone moved": ([curves(1.01, "exact")], 1, ORACLE, "final loss of the reference"),
    "runs removed": ([every(lambda v: replace(v, runs=()))], CANNOT, APART, RECIPES),
    "other fixtures": ([runs(lambda run: replace(run, fixture="small"))], CANNOT, APART, RECIPES),
    "other setups": ([every(lambda v: replace(v, setup_hash="other"))], CANNOT, None, "cannot be judged"),
    "clauses are observations": ([clauses(level="OBSERVATION")], 1, LOWERED, "MUST → OBSERVATION"),
    "one clause raised": ([raise_revision], 0, APART, "different revisions of the clause: 1 and 2"),
    "nine tenths of the tests": ([keep_verdicts(lambda verdicts: verdicts[:136])], CANNOT, None, "cannot be judged"),
    "one test": ([keep_verdicts(lambda verdicts: verdicts[:-1])], 1, ChangeKind.REMOVED, "1 removed"),
    "tests of another suite": ([keep_verdicts(without_functions), areas("judging")], 0, APART, UNCOMPARED),
    "observations": ([lambda record: replace(record, observations=())], 1, ChangeKind.REMOVED, "removed"),
    "passes unsupported": ([outcomes(Outcome.PASS, outcome=Outcome.UNSUPPORTED)], 1, UNJUDGED, "newly not judged"),
    "areas forgotten": ([suite(areas={})], 0, None, "the suite may differ"),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_compare_of_a_changed_suite_tells_it_for_what_it_is(name: str) -> None:
    doctors, status, kind, text = DOCTORED[name]
    new = old()
    for doctor in doctors:
        new = doctor(new)
    comparison = compare(old(), new)
    kinds = {change.kind for change in comparison.changes}
    assert kind is None or kind in kinds
    assert (comparison.status, text in said(comparison)) == (status, True), said(comparison)[-600:]
    if status == 0:
        assert not {kind for kind in kinds if kind.worse}
    quiet = name in ("another suite version", "multipliers smaller", "areas forgotten")
    assert quiet or verdict(Comparisons((comparison,))) not in ("nothing is worse", "nothing is worse: identical")


def test_fifty_of_fifty_four_tests_that_cannot_be_compared_are_not_judged() -> None:
    few = replace(old(), verdicts=old().verdicts[:54])
    chosen = {one.test for one in few.verdicts[4:]}
    new = with_verdicts(few, lambda v: replace(v, setup_hash="x") if v.test in chosen else v)
    comparison = compare(few, new)
    assert (comparison.status, comparison.compared, comparison.of) == (2, 4, 54)
    assert "comparable, want 50% (4 of 54 tests compared)" in said(comparison)
    assert said(comparison).endswith("cannot be judged")


def test_every_area_is_there_and_every_package_that_judges_is_in_one() -> None:
    places = {path for area in identity.AREAS.values() for path in area}
    assert [path for path in places if not (ROOT / path).exists()] == []
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "conformance").glob("*/__init__.py")}
    others = ("cli", "models", "race", "scenarios", "spec", "sweep")
    without = {f"conformance/{name}" for name in others}
    assert packages - places == without
