"""Records that a changed suite wrote: each is reported for what it is, whatever the framework did."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conformance.runner import identity
from results.compare.changes import ChangeKind
from results.compare.comparison import compare
from results.compare.pairing import Comparisons
from results.record.reading import Curves, Outcome, Record, RunSetup, TestVerdict
from results.show.differences import verdict
from tests.records.test_doctored import said
from tests.support.doctored import baseline, with_curves, with_verdicts
from tests.support.suite_runs import ROOT

AREAS = dict.fromkeys(("adapter", "contract", "expectations", "fixtures", "judging", "oracle"), "0" * 16)
CANNOT = 2

Doctor = Callable[[Record], Record]


def old() -> Record:
    """The baseline, as this suite would have written it, with a failure that is known."""
    record = baseline()
    suite = replace(record.suite, commit="a" * 40, areas={**AREAS, "specification": "0" * 16})
    return replace(record, suite=suite)


def areas(*names: str) -> Doctor:
    def doctor(record: Record) -> Record:
        changed = {**record.suite.areas, **dict.fromkeys(names, "f" * 16)}
        return replace(record, suite=replace(record.suite, areas=changed, commit="b" * 40))

    return doctor


def each(change: Callable[[TestVerdict], TestVerdict]) -> Doctor:
    return lambda record: with_verdicts(record, change)


def checks(**fields: Any) -> Doctor:
    return each(lambda v: replace(v, checks=tuple(replace(check, **fields) for check in v.checks)))


def derived(key: str, times: float, bound: float = 1.0) -> Doctor:
    """Bounds and one part of their derivation, multiplied."""

    def change(one: TestVerdict) -> TestVerdict:
        made = []
        for check in one.checks:
            if isinstance(check.bound, float) and isinstance(part := check.derivation.get(key), int | float):
                check = replace(check, bound=bound * check.bound, derivation={**check.derivation, key: times * part})
            made.append(check)
        return replace(one, checks=tuple(made))

    return each(change)


def clauses(**fields: Any) -> Doctor:
    return lambda record: replace(
        record, clauses={name: replace(text, **fields) for name, text in record.clauses.items()}
    )


def curves(factor: float, *names: str) -> Doctor:
    def change(course: Curves) -> Curves:
        return {**course, **{name: tuple(factor * x for x in course[name]) for name in names if name in course}}

    return lambda record: with_curves(record, change)


def norms(factor: float) -> Doctor:
    return lambda record: replace(
        record,
        tensors=tuple(
            replace(one, arrays=tuple(replace(array, norm=factor * array.norm) for array in one.arrays))
            for one in record.tensors
        ),
    )


def judged_leniently(record: Record) -> Record:
    """What a suite writes whose every failure passes."""
    passed = {"outcome": Outcome.PASS, "signature": "", "message": "", "reason": "", "finding": "", "link": ""}
    return each(lambda v: replace(v, **passed) if v.outcome is Outcome.KNOWN else v)(areas("judging")(record))  # type: ignore[arg-type]


def all_but(count: int) -> Doctor:
    return lambda record: replace(record, verdicts=record.verdicts[:count])


def first(change: Callable[[TestVerdict], TestVerdict], chosen: Callable[[TestVerdict], bool]) -> Doctor:
    """A change of the first verdict that is chosen alone."""

    def doctor(record: Record) -> Record:
        place = next(place for place, one in enumerate(record.verdicts) if chosen(one))
        made = list(record.verdicts)
        made[place] = change(made[place])
        return replace(record, verdicts=tuple(made))

    return doctor


def bounded(one: TestVerdict) -> bool:
    return one.outcome is Outcome.PASS and any(isinstance(check.bound, float) for check in one.checks)


def other_recipe(one: TestVerdict) -> TestVerdict:
    return replace(one, runs=tuple(RunSetup(run.fixture, {**run.recipe, "clip": 0.001}) for run in one.runs))


def without(field: str, share: int = 1) -> Doctor:
    return lambda record: replace(record, **{field: tuple(getattr(record, field)[::share][:0])})


def without_functions(record: Record, count: int) -> Record:
    """The record without its last test functions."""
    functions = sorted({one.test.partition("[")[0] for one in record.verdicts})[:-count]
    return replace(record, verdicts=tuple(one for one in record.verdicts if one.test.partition("[")[0] in functions))


DOCTORED: Mapping[str, tuple[Doctor, int, Sequence[ChangeKind], str]] = {
    # the twelve that were once reported as "nothing is worse"
    "every failure passes": (judged_leniently, 1, [ChangeKind.CONTRADICTED], "the suite differs: judging"),
    "all checks removed": (each(lambda v: replace(v, checks=())), 1, [ChangeKind.FEWER_CHECKS], "0 checks"),
    "all traces removed": (without("traces"), 1, [ChangeKind.TRACE_MISSING], "curves 'loss'"),
    "bounds wider by their multiplier": (derived("multiplier", 1000, 1000), 1, [ChangeKind.BOUND_WIDER], "multiplier"),
    "every recipe changed": (each(other_recipe), CANNOT, [ChangeKind.NOT_COMPARABLE], "different training recipes"),
    "all clauses are SHOULD": (clauses(level="SHOULD"), 1, [ChangeKind.LEVEL_LOWERED], "MUST → SHOULD"),
    "all gradient norms doubled": (norms(2.0), 0, [ChangeKind.DRIFT], "tests drifted"),
    "losses and oracle doubled": (curves(2.0, "loss", "exact"), 1, [ChangeKind.ORACLE_CHANGED], "oracle changed"),
    "another suite version": (
        lambda record: replace(record, suite=replace(record.suite, version="9.9")),
        0,
        [],
        "suite version: 0.1.0 → 9.9",
    ),
    "all revisions raised": (clauses(revision=7), CANNOT, [], "cannot be judged"),
    "judging code changed": (areas("judging"), 0, [], "the suite itself differs: judging"),
    "adapter and contract changed": (areas("adapter", "contract"), 0, [], "the suite differs: adapter, contract"),
    # and others
    "half of the checks removed": (
        each(lambda v: replace(v, checks=v.checks[: len(v.checks) // 2])),
        1,
        [ChangeKind.FEWER_CHECKS],
        "missing: ",
    ),
    "one check of one test removed": (
        first(lambda v: replace(v, checks=v.checks[1:]), bounded),
        1,
        [ChangeKind.FEWER_CHECKS],
        "fewer checks",
    ),
    "one check fails and the test passes": (
        first(lambda v: replace(v, checks=(replace(v.checks[0], passed=False), *v.checks[1:])), bounded),
        1,
        [ChangeKind.CONTRADICTED],
        "passes against its own checks",
    ),
    "every check fails and the tests pass": (checks(passed=False), 1, [ChangeKind.CONTRADICTED], "got "),
    "bounds infinite": (checks(bound=math.inf), 1, [ChangeKind.BOUND_WIDER], "→ inf"),
    "bounds gone": (checks(bound=None), 1, [ChangeKind.BOUND_WIDER], "bound wider"),
    "bounds NaN": (checks(bound=math.nan), 1, [ChangeKind.BOUND_WIDER], "bound wider"),
    "multiplier of one test a little larger": (
        first(
            lambda v: derived("multiplier", 1.25, 1.25)(replace(old(), verdicts=(v,))).verdicts[0],
            lambda v: bounded(v) and any("multiplier" in check.derivation for check in v.checks),
        ),
        1,
        [ChangeKind.BOUND_WIDER],
        "4 → 5",
    ),
    "multipliers smaller": (derived("multiplier", 0.5, 0.5), 0, [ChangeKind.BOUND_CHANGED], "bound changed"),
    "bounds 100 times as wide by their spread": (derived("spread", 100, 100), 1, [ChangeKind.BOUND_WIDER], "bound"),
    "fingerprints removed": (without("tensors"), 1, [ChangeKind.TRACE_MISSING], "fingerprints"),
    "reference's curves removed": (
        lambda record: with_curves(record, lambda c: {k: v for k, v in c.items() if k != "exact"}),
        1,
        [ChangeKind.TRACE_MISSING],
        "curves 'exact'",
    ),
    "spreads of losses wider": (curves(100.0, "spread"), 1, [ChangeKind.BOUND_WIDER], "spread of the losses: × 100"),
    "bounds of losses wider": (curves(1000.0, "bound"), 1, [ChangeKind.BOUND_WIDER], "bound of the losses: × 1000"),
    "oracle losses alone moved": (curves(1.01, "exact"), 1, [ChangeKind.ORACLE_CHANGED], "final loss of the reference"),
    "runs removed": (
        each(lambda v: replace(v, runs=())),
        CANNOT,
        [ChangeKind.NOT_COMPARABLE],
        "different training recipes",
    ),
    "other fixtures": (
        each(lambda v: replace(v, runs=tuple(replace(run, fixture="small") for run in v.runs))),
        CANNOT,
        [ChangeKind.NOT_COMPARABLE],
        "different training recipes",
    ),
    "other setups": (each(lambda v: replace(v, setup_hash="other")), CANNOT, [], "cannot be judged"),
    "clauses are observations": (clauses(level="OBSERVATION"), 1, [ChangeKind.LEVEL_LOWERED], "MUST → OBSERVATION"),
    "one clause raised": (
        lambda record: replace(
            record,
            clauses={
                name: replace(text, revision=text.revision + (name == "scaling.automaton"))
                for name, text in record.clauses.items()
            },
        ),
        0,
        [ChangeKind.NOT_COMPARABLE],
        "different revisions of the clause: 1 and 2",
    ),
    "nine tenths of the tests removed": (all_but(136), CANNOT, [], "cannot be judged"),
    "one test removed": (all_but(-1), 1, [ChangeKind.REMOVED], "1 removed"),
    "tests removed by another suite": (
        lambda record: areas("judging")(without_functions(record, 20)),
        0,
        [ChangeKind.NOT_COMPARABLE],
        "tests were not compared; the suite itself differs: judging",
    ),
    "observations removed": (without("observations"), 1, [ChangeKind.REMOVED], "removed"),
    "every pass is unsupported": (
        each(lambda v: replace(v, outcome=Outcome.UNSUPPORTED) if v.outcome is Outcome.PASS else v),
        1,
        [ChangeKind.NEWLY_UNJUDGED],
        "newly not judged",
    ),
    "areas forgotten": (
        lambda record: replace(record, suite=replace(record.suite, areas={})),
        0,
        [],
        "the suite may differ",
    ),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_a_changed_suite_is_reported_for_what_it_is(name: str) -> None:
    doctor, status, wanted, words = DOCTORED[name]
    comparison = compare(old(), doctor(old()))
    kinds = {change.kind for change in comparison.changes}
    assert {*wanted} <= kinds
    assert (comparison.status, words in said(comparison)) == (status, True), said(comparison)[-600:]
    if status != 1:
        assert not {kind for kind in kinds if kind.worse} or status == CANNOT
    last = verdict(Comparisons((comparison,)))
    assert last not in ("nothing is worse", "nothing is worse: identical") or name in (
        "another suite version",
        "multipliers smaller",
        "areas forgotten",
    )


def test_the_suite_of_the_baseline_itself_is_identical() -> None:
    assert compare(old(), old()).identical


def test_fifty_of_fifty_four_tests_that_cannot_be_compared_are_not_judged() -> None:
    few = replace(old(), verdicts=old().verdicts[:54])
    chosen = {one.test for one in few.verdicts[4:]}
    new = with_verdicts(few, lambda v: replace(v, setup_hash="x") if v.test in chosen else v)
    comparison = compare(few, new)
    assert (comparison.status, comparison.compared, comparison.of) == (2, 4, 54)
    assert "comparable, want 50% (4 of 54 tests compared)" in said(comparison)
    assert said(comparison).endswith("cannot be judged")


def test_every_area_is_there_and_every_package_that_judges_is_in_one() -> None:
    places = {place for area in identity.AREAS.values() for place in area}
    assert [place for place in places if not (ROOT / place).exists()] == []
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "conformance").glob("*/__init__.py")}
    others = ("cli", "models", "race", "scenarios", "spec", "sweep")
    without = {f"conformance/{name}" for name in others}
    assert packages - places == without
