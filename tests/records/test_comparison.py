"""Comparisons of records: kinds of changes, refusals, numbers, arrays, and the ratio of two series of times."""

import math
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from results.compare.changes import ChangeKind
from results.compare.comparison import Comparisons, compare, compare_sets
from results.compare.numbers import Movement
from results.compare.ratio import CONFIDENCE, FEWEST, SMALLEST, TRIMMED, ratio
from results.record.arrays import differs, fingerprint, first_difference
from results.record.files import RecordError
from results.record.model import Consequence, FindingKind, FindingText, Fingerprint, Json, Observation
from results.record.reading import CheckResult, Curves, Measurement, Outcome, Record, RunSetup, Tensors, Trace, write
from results.show.differences import headline, markdown, to_text
from tests.support.recorded import (
    ARRAYS,
    BASE,
    BOUND,
    CLAUSE,
    ERROR,
    FULL,
    TESTS,
    VALUES,
    change_verdict,
    make_measured_record,
    make_timed_record,
    replace_observations,
)
from tests.support.suite_runs import call_command


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (Outcome.PASS, Outcome.FAIL, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.CRASH, ChangeKind.NEWLY_FAILING),
        (Outcome.UNSUPPORTED, Outcome.KNOWN, ChangeKind.NEWLY_FAILING),
        (Outcome.FIXED, Outcome.ERROR, ChangeKind.NEWLY_FAILING),
        (Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.FIXED, ChangeKind.NEWLY_PASSING),
        (Outcome.UNSUPPORTED, Outcome.PASS, ChangeKind.NEWLY_PASSING),
        (Outcome.PASS, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.FAIL, Outcome.UNSTABLE, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.PASS, ChangeKind.UNSTABLE),
        (Outcome.UNSTABLE, Outcome.UNSTABLE, None),
        (Outcome.FAIL, Outcome.KNOWN, None),
        (Outcome.PASS, Outcome.FIXED, None),
        (Outcome.UNSUPPORTED, Outcome.ABSTAIN, None),
        (Outcome.PASS, Outcome.NOT_OFFERED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.KNOWN, Outcome.NOT_OFFERED, ChangeKind.NEWLY_UNJUDGED),
        (Outcome.NOT_OFFERED, Outcome.PASS, ChangeKind.NEWLY_PASSING),
        (Outcome.NOT_OFFERED, Outcome.FAIL, ChangeKind.NEWLY_FAILING),
        (Outcome.UNSUPPORTED, Outcome.NOT_OFFERED, None),
        (Outcome.NOT_OFFERED, Outcome.UNSUPPORTED, None),
    ],
)
def test_compare_of_two_outcomes_has_their_kind_of_change(old: Outcome, new: Outcome, kind: ChangeKind | None) -> None:
    result = compare(change_verdict(BASE, 1, outcome=old), change_verdict(BASE, 1, outcome=new))
    assert [change.kind for change in result.changes] == ([] if kind is None else [kind])
    assert result.status == (1 if kind is not None and kind.worse else 0)
    assert all(change.subject == TESTS[1] for change in result.changes)


def on_processor(record: Record, *instruction_sets: str) -> Record:
    return replace(record, variant=replace(record.variant, instruction_sets=instruction_sets))


def loss(curves: Curves) -> Trace:
    return Trace("loss", "test_a", curves)


REFUSED = {"outcome": Outcome.UNSUPPORTED, "reason": "it wants avx512f"}
KNOWN_ON_NARROW = {"outcome": Outcome.KNOWN, "signature": "inaccurate", "reason": "without avx512f it is cut off"}
WIDE, NARROW = ("avx2", "avx512f"), ("avx2",)


@pytest.mark.parametrize(
    ("before", "changes", "after", "kind", "status"),
    [
        (WIDE, REFUSED, NARROW, ChangeKind.NOT_COMPARABLE, 0),
        (WIDE, KNOWN_ON_NARROW, NARROW, ChangeKind.NOT_COMPARABLE, 0),
        (NARROW, KNOWN_ON_NARROW, WIDE, ChangeKind.NOT_COMPARABLE, 0),
        (WIDE, REFUSED | {"reason": "it is not offered"}, NARROW, ChangeKind.NEWLY_UNJUDGED, 1),
        (WIDE, REFUSED, WIDE, ChangeKind.NEWLY_UNJUDGED, 1),
        (WIDE, REFUSED | {"reason": "it wants avx512fp16"}, NARROW, ChangeKind.NEWLY_UNJUDGED, 1),
        (WIDE, REFUSED, (), ChangeKind.NEWLY_UNJUDGED, 1),
        (WIDE, KNOWN_ON_NARROW | {"outcome": Outcome.FAIL}, NARROW, ChangeKind.NEWLY_FAILING, 1),
        (WIDE, KNOWN_ON_NARROW | {"reason": "it is cut off"}, NARROW, ChangeKind.NEWLY_FAILING, 1),
        (WIDE, KNOWN_ON_NARROW, WIDE, ChangeKind.NEWLY_FAILING, 1),
        (NARROW, KNOWN_ON_NARROW, NARROW, ChangeKind.NEWLY_FAILING, 1),
    ],
)
def test_compare_of_a_refusal_for_an_instruction_set_is_not_worse(
    before: tuple[str, ...], changes: dict[str, Any], after: tuple[str, ...], kind: ChangeKind, status: int
) -> None:
    result = compare(on_processor(BASE, *before), on_processor(change_verdict(BASE, 1, **changes), *after))
    assert (result.status, [change.kind for change in result.changes]) == (status, [kind])
    if kind is ChangeKind.NOT_COMPARABLE:
        verb = "has" if after == WIDE else "lacks"
        assert result.changes[0].detail == f"the new machine {verb} avx512f: {changes['reason']}"


def test_compare_of_an_observation_of_another_processor_is_left_out() -> None:
    old, new = on_processor(BASE, *WIDE), replace_observations(**{"rule/test_b[1]": "none"})
    assert compare(old, on_processor(new, *WIDE)).changes[0].kind is ChangeKind.OBSERVATION_CHANGED
    assert compare(old, on_processor(new, *NARROW)).changes[0].kind is ChangeKind.NOT_COMPARABLE


def test_compare_of_a_refusal_of_the_processor_excuses_its_observations_and_no_other_test() -> None:
    more = tuple(replace(BASE.verdicts[2], test=f"{CLAUSE}/test_c[{index}]") for index in range(3))
    old = on_processor(replace(BASE, verdicts=BASE.verdicts + more), *WIDE, "gfni")
    refusing = on_processor(change_verdict(replace_observations(**{"rule/test_b[1]": "none"}), 1, **REFUSED), *NARROW)
    assert compare(on_processor(BASE, *WIDE), change_verdict(refusing, 0, **REFUSED)).status == 2
    refusing = replace(refusing, verdicts=refusing.verdicts + more)
    result = compare(old, refusing)
    assert (result.status, {change.kind for change in result.changes}) == (0, {ChangeKind.NOT_COMPARABLE})
    assert "2: the new machine lacks avx512f" in " ".join(to_text(Comparisons((result,))).split())
    unrelated = change_verdict(refusing, 2, outcome=Outcome.UNSUPPORTED, reason="it is not offered")
    fewer_tests = replace(refusing, verdicts=refusing.verdicts[1:])
    fewer_observations = replace(refusing, observations=refusing.observations[1:])
    failing = change_verdict(refusing, 0, outcome=Outcome.FAIL)
    kinds = (ChangeKind.NEWLY_UNJUDGED, ChangeKind.REMOVED, ChangeKind.REMOVED, ChangeKind.NEWLY_FAILING)
    for new, kind in zip((unrelated, fewer_tests, fewer_observations, failing), kinds, strict=True):
        result = compare(old, new)
        assert (result.status, kind in {change.kind for change in result.changes}) == (1, True)


@pytest.mark.parametrize(
    ("sets", "changes", "compared"),
    [
        (WIDE, {}, True),
        (NARROW, {}, False),
        (NARROW, {"framework_version": "99"}, True),
        (NARROW, {"packages": {"numpy": "2.4"}}, True),
    ],
    ids=["same-processor", "other-processor", "other-version", "other-companion"],
)
def test_compare_of_a_bound_of_the_same_version_on_another_processor_is_left_out(
    sets: tuple[str, ...], changes: dict[str, Any], compared: bool
) -> None:
    narrow, wide = (
        change_verdict(BASE, 0, checks=(CheckResult("an error", 0.001, bound, None, True),))
        for bound in (0.0138, 0.1446)
    )
    old = on_processor(replace(narrow, variant=replace(BASE.variant, packages={"numpy": "2.3"})), *WIDE)
    new = replace(wide, variant=replace(old.variant, instruction_sets=sets, **changes))
    assert [change.kind for change in compare(old, new).changes] == [ChangeKind.BOUND_WIDER] * compared


LOW = fingerprint("output/a", np.nextafter(VALUES, np.float32(0)))


def make_known_failure(signature: str, **changes: Any) -> Record:
    return change_verdict(BASE, 0, outcome=Outcome.KNOWN, signature=signature, **changes)


def change_first(**changes: Any) -> Record:
    return change_verdict(FULL, 0, **changes)


def change_check(**changes: Any) -> Record:
    return change_first(checks=(replace(FULL.verdicts[0].checks[0], **changes), BOUND))


def change_multiplier(multiplier: float) -> Record:
    return change_check(bound=multiplier / 4, derivation={"multiplier": multiplier, "spread": 0.25})


def change_curves(*left_out: str, **changes: tuple[float, ...]) -> Record:
    curves = {**FULL.traces[0].curves, **changes}
    return replace(FULL, traces=(loss({name: curves[name] for name in curves if name not in left_out}),))


def change_arrays(*arrays: Fingerprint) -> Record:
    return replace(FULL, tensors=(replace(FULL.tensors[0], arrays=arrays),))


def change_every(**changes: Any) -> Record:
    return replace(FULL, verdicts=tuple(replace(verdict, **changes) for verdict in FULL.verdicts))


def change_clause(**changes: Any) -> Record:
    return replace(FULL, clauses={CLAUSE: replace(FULL.clauses[CLAUSE], **changes)})


def change_areas(*names: str) -> Record:
    areas = {**FULL.suite.areas, **dict.fromkeys(names, "f" * 16)}
    return replace(FULL, suite=replace(FULL.suite, areas=areas, commit="b" * 40))


def bytes_of(*sizes: float) -> Record:
    return make_measured_record({"bytes/test_a": sizes})


FORMATS = {"formats/test_a": {"add": "float32", "mul": {"low": math.nan}}}
FEWER = replace(BASE, verdicts=BASE.verdicts[1:])
ZERO, INFINITE_SCALE = map(make_known_failure, ("scale-zero", "scale-inf"))
INFERRED = make_known_failure("scale-inf", inferred_from="2.12.0")
UNSTABLE = change_verdict(BASE, 0, outcome=Outcome.UNSTABLE, message="not the same twice", repeats=("fail (x)", "pass"))
REPEATS = "not the same twice repeated: fail (x), pass."
GIGABYTE, MORE, ONE_MORE = "1,000,000,000 B", "1,000,000,001 B", "+1 B, ratio 1, counted exactly"
FIRST_MOVE = "the loss at update 1 is the first that moved by more than rounding explains: 0.5, 2.5 times"
LATER_ERROR = change_check(what="the loss at update 4", measured=0.9)
NORMS = tuple(replace(array, norm=2.0 * array.norm) for array in ARRAYS)
DRIFT, WIDER, MISSING, FEWER_CHECKS = (
    ChangeKind.DRIFT,
    ChangeKind.BOUND_WIDER,
    ChangeKind.TRACE_MISSING,
    ChangeKind.FEWER_CHECKS,
)


@pytest.mark.parametrize(
    ("old", "new", "kind", "before", "after", "detail", "status"),
    [
        (ZERO, INFINITE_SCALE, ChangeKind.FAILING_OTHERWISE, "known (scale-zero)", "known (scale-inf)", "", 1),
        (BASE, INFERRED, ChangeKind.NEWLY_FAILING, "pass", "known (scale-inf), not confirmed here", "", 1),
        (BASE, UNSTABLE, ChangeKind.UNSTABLE, "pass", "unstable", REPEATS, 0),
        (BASE, FEWER, ChangeKind.REMOVED, "pass", "", "", 1),
        (FEWER, BASE, ChangeKind.ADDED, "", "pass", "", 0),
        (BASE, replace_observations(**FORMATS), ChangeKind.OBSERVATION_CHANGED, "float16", "float32", "", 1),
        (bytes_of(1e9, 1e9, 1e9), bytes_of(1e9 + 1), ChangeKind.MEASURE_WORSE, GIGABYTE, MORE, ONE_MORE, 1),
        (BASE, bytes_of(99.0), ChangeKind.MEASURE_BETTER, "100 B", "99 B", "", 0),
        (BASE, bytes_of(math.nan), ChangeKind.NOT_COMPARABLE, "100 B", "nan B", "", 0),
        (FULL, change_curves(loss=(1.0, 2.5, 9.0)), DRIFT, "2", "2.5", FIRST_MOVE, 0),
        (FULL, change_curves(loss=(math.nan, 2.0, 3.0)), DRIFT, "1", "nan", "", 0),
        (FULL, change_curves(loss=(1.0, 2.0)), MISSING, "curves 'loss'", "2 of 3 steps", "", 1),
        (FULL, LATER_ERROR, DRIFT, "0.1 of 1", "0.9 of 1", "update 4: 9 times as large, 0.9 of its bound", 0),
        (FULL, change_arrays(*NORMS), DRIFT, "3.31945", "6.6389", "the norm of output/a is 2 times as large", 0),
        (FULL, change_multiplier(2.0), ChangeKind.BOUND_CHANGED, "4", "2", "multiplier", 0),
        (FULL, change_multiplier(5.0), WIDER, "4", "5", "multiplier", 1),
        (FULL, change_check(bound=8.0), ChangeKind.BOUND_CHANGED, "1", "8", "", 0),
        (FULL, change_check(bound=100.0), WIDER, "1", "100", "", 1),
        (FULL, change_check(bound=math.inf), WIDER, "1", "inf", "", 1),
        (FULL, change_check(bound=math.nan), WIDER, "1", "nan", "", 1),
        (FULL, change_check(bound=None), WIDER, "1", "", "", 1),
        (FULL, change_curves(bound=(2.0, 4.0, 4.0)), WIDER, "", "", "bound of the losses: × 20 or more", 1),
        (FULL, change_curves(spread=(1.0, 1.0, 1.0)), WIDER, "", "", "spread of the losses: × 20 or more", 1),
        (FULL, change_first(checks=()), FEWER_CHECKS, "2 checks", "0 checks", "missing: the loss at update #", 1),
        (FULL, change_first(checks=(BOUND,)), FEWER_CHECKS, "2 checks", "1 checks", "missing: the loss at update #", 1),
        (FULL, change_check(passed=False), ChangeKind.CONTRADICTED, "", "pass", "update 2: got 0.1, want ", 1),
        (FULL, replace(FULL, tensors=()), MISSING, "fingerprints 'layers'", "", "", 1),
        (FULL, replace(FULL, traces=()), MISSING, "curves 'loss'", "", "", 1),
        (FULL, change_curves("exact"), MISSING, "curves 'exact'", "", "", 1),
        (FULL, change_curves(exact=(1.0, 2.0, 3.1)), ChangeKind.ORACLE_CHANGED, "3.0", "3.1", "final loss", 1),
        (FULL, change_clause(level="SHOULD"), ChangeKind.LEVEL_LOWERED, "MUST", "SHOULD", "", 1),
        (FULL, change_clause(level="OBSERVATION"), ChangeKind.LEVEL_LOWERED, "MUST", "OBSERVATION", "", 1),
        (change_clause(level="SHOULD"), FULL, ChangeKind.LEVEL_RAISED, "SHOULD", "MUST", "", 0),
    ],
)
def test_compare_of_one_difference_is_one_change(
    old: Record, new: Record, kind: ChangeKind, before: str, after: str, detail: str, status: int
) -> None:
    result = compare(old, new)
    (change,) = result.changes
    assert (change.kind, change.old, change.new, result.status) == (kind, before, after, status)
    assert detail in change.detail
    assert compare(old, old).changes == ()


def entries(measured: Json, expected: Json, what: str = "state") -> CheckResult:
    return CheckResult(what, measured, None, expected, True)


def checked(*checks: CheckResult) -> Record:
    return change_first(checks=checks)


def bounded(bound: Json, *derivation: tuple[str, Json], **changes: Any) -> Record:
    return change_check(**{"bound": bound, "derivation": dict(derivation), **changes})


def traced(key: str, *points: float) -> Record:
    return replace(FULL, traces=(*FULL.traces, Trace(key, "test_a", {key: points})))


def arrays(*changes: Any, **fields: Any) -> Record:
    return change_arrays(ARRAYS[0], *(changes or (replace(ARRAYS[1], **fields),)))


def found(consequence: Consequence) -> Record:
    return replace(FULL, findings={"f": FindingText(FindingKind.DEFECT, consequence, "why", "none found", "")})


def timed(**changes: Any) -> Record:
    record = make_timed_record(1, 1.0)
    return replace(record, measurements=tuple(replace(one, **changes) for one in record.measurements))


TWO, OTHER = entries("2 equal entries", "2 equal entries"), entries("2 equal entries", "2 equal entries", "moments")
ORIGIN, FIELD, EIGHT, ONE = ("origin", "abc"), ("parameter", "0.bias"), ("samples", 8), ("samples", 1)
FAR, NEGATIVE = fingerprint("gradient/a", 1.03 * VALUES), fingerprint("gradient/a", -VALUES)
MANY, NULLS = ((replace(BOUND, measured=error),) * 30 for error in (0.5, 0.0))
SILENT, BITS = map(found, (Consequence.SILENT_CORRUPTION, Consequence.LAST_BITS))
CONTRADICTED, INCONSISTENT, ALTERED = ChangeKind.CONTRADICTED, ChangeKind.INCONSISTENT, ChangeKind.ALTERED


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        *((FULL, change_check(measured=error), CONTRADICTED, "got ") for error in (None, math.nan, -0.1)),
        (change_check(measured=0.9), change_check(measured=1.5), CONTRADICTED, "got 1.5"),
        (checked(TWO), checked(entries("3 equal entries", "2 equal entries")), CONTRADICTED, "got 3 equal entries"),
        (checked(entries("so", "so")), checked(entries("else", "so")), CONTRADICTED, "got else, want so"),
        (checked(entries("[1]", "[1]")), checked(entries("[2]", "[1]")), None, ""),
        (
            checked(TWO),
            checked(entries("1 equal entries", "1 equal entries")),
            FEWER_CHECKS,
            "2 equal entries → 1 equal",
        ),
        (checked(TWO), checked(entries("2 equal entries", "any")), FEWER_CHECKS, "2 equal entries → 0 equal entries"),
        (FULL, checked(ERROR, OTHER), FEWER_CHECKS, "2 checks with a bound → 1 checks with a bound: missing: distance"),
        (checked(TWO, OTHER), checked(TWO, TWO), FEWER_CHECKS, "2 different checks → 1 different checks"),
        (checked(TWO), checked(TWO, TWO), ALTERED, "more checks"),
        (checked(entries(3, 3)), checked(entries(0, 0)), ALTERED, "another expected value"),
        (checked(TWO), checked(replace(TWO, what="the state")), None, ""),
        (FULL, change_check(what="size of an error", bound=12.0), WIDER, "1 → 12"),
        (FULL, change_check(bound="within tolerance"), WIDER, "1 → within tolerance"),
        (FULL, bounded(1.0, ("multiplier", 6.0)), ALTERED, "multiplier of the derivation: 4 → 6"),
        (bounded(1.0, EIGHT), bounded(1.0, ONE), ALTERED, "samples of the derivation: 8 → 1"),
        (bounded(1.0, ORIGIN), bounded(1.3, ORIGIN), None, ""),
        (bounded(1.0, ORIGIN), bounded(1.6, ORIGIN), WIDER, "1 → 1.6"),
        (bounded(1.0, ORIGIN), bounded(1.6), WIDER, "1 → 1.6"),
        (bounded(1.0, ORIGIN), bounded(0.6, ORIGIN), ChangeKind.BOUND_CHANGED, "1 → 0.6"),
        (bounded(1.0, ORIGIN), bounded(9.0, ORIGIN, FIELD), None, ""),
        (bounded(1.0, ORIGIN), bounded(1.3, ("origin", "def")), ChangeKind.BOUND_CHANGED, "1 → 1.3"),
        (bounded(1.0, ORIGIN), bounded(1.0 + 1e-9, ("origin", "def")), None, ""),
        (ZERO, change_verdict(BASE, 0, checks=()), ChangeKind.UNCHECKED, "known (scale-zero) → pass"),
        (ZERO, make_known_failure("scale-zero", link="https://e.org"), ALTERED, "the verdict's link"),
        (FULL, change_first(seed=3), INCONSISTENT, "1 of 3 verdicts have another seed than the record"),
        (change_every(checks=MANY), change_every(checks=NULLS), INCONSISTENT, "have errors, and each is exactly 0"),
        (FULL, change_first(repeats=("fail",)), INCONSISTENT, "1 of 3 verdicts pass, and failed when repeated"),
        (change_first(repro="--seed=0"), change_first(repro="--seed=1"), INCONSISTENT, "another framework or seed"),
        (FULL, change_clause(requirement="…, if practical"), ALTERED, "the clause's requirement"),
        (SILENT, BITS, ChangeKind.LEVEL_LOWERED, "silent-corruption → last-bits: consequence of the finding"),
        (BITS, SILENT, ChangeKind.LEVEL_RAISED, "last-bits → silent-corruption: consequence of the finding"),
        (FULL, change_curves("bound"), MISSING, "curves 'bound'"),
        (FULL, change_curves(spread=(0.05,) * 4), ALTERED, "more curves"),
        (change_curves(loss=(1.0, 2.1, 3.0)), FULL, INCONSISTENT, "the losses are the reference's, in float64"),
        (traced("scale", 4.0, 2.0), traced("scale", 4.0, 4.0), DRIFT, "curve 'scale'"),
        (FULL, arrays(NEGATIVE), DRIFT, "sampled values of gradient/a moved by 2 of their norm"),
        (FULL, arrays(FAR), DRIFT, "3.31945 → 3.41903"),
        (FULL, arrays(norm=math.nan, digest="0" * 16), DRIFT, "3.31945 → nan"),
        (FULL, arrays(sample=NEGATIVE.sample), DRIFT, "sampled values of gradient/a moved by 2 of their norm"),
        (FULL, change_arrays(*ARRAYS[::-1]), DRIFT, "the order of 2 arrays"),
        (FULL, arrays(format="float16"), DRIFT, "the format, shape or number of sampled values of gradient/a"),
        (FULL, change_arrays(ARRAYS[0]), MISSING, "fingerprints 'gradient/a'"),
        (timed(), timed(control=()), MISSING, f"{FEWEST} of the control → {FEWEST} samples, 0 of the control"),
        (BASE, bytes_of(), MISSING, "1 samples, 0 of the control → 0 samples"),
        (BASE, bytes_of(-100.0), CONTRADICTED, "100 B → -100 B: a count cannot be negative"),
    ],
)
def test_compare_says_what_one_side_lacks_and_what_contradicts_itself(
    old: Record, new: Record, kind: ChangeKind | None, text: str
) -> None:
    result = compare(old, new)
    assert [change.kind for change in result.changes] == ([] if kind is None else [kind])
    assert all(text in f"{change.old} → {change.new}: {change.detail}" for change in result.changes)
    assert result.status == int(kind is not None and kind.worse)
    assert compare(old, old).changes == ()


def test_compare_of_a_failure_that_passes_by_the_same_numbers_contradicts_it() -> None:
    failed, passed = (checked(replace(entries("others", "the same"), passed=passed)) for passed in (False, True))
    changes = compare(change_verdict(failed, 0, outcome=Outcome.KNOWN), passed).changes
    assert [change.kind for change in changes] == [CONTRADICTED, ChangeKind.NEWLY_PASSING]


def variant(**changes: Any) -> Record:
    return replace(BASE, variant=replace(BASE.variant, **changes))


PARTLY = replace(BASE, selection="-k a", status="partial")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (BASE, variant(packages={"torch": "2.14.0"}), "it is of torch 2.13.0, and lists torch 2.14.0"),
        (BASE, variant(packages={"numpy": "1.26"}), "its environment has numpy 2.3, its packages have 1.26"),
        (
            variant(environment={"commit": "abc"}),
            variant(environment={"commit": "abc"}, framework_version="2.14.0"),
            "another version of the framework, built from the same commit abc",
        ),
        (
            BASE,
            replace(BASE, finished="2026-01-01T00:00:00Z"),
            f"it ended at 2026-01-01T00:00:00Z, before its start at {BASE.started}",
        ),
        (BASE, replace(BASE, duration_s=0.0), "it took no time"),
        (PARTLY, replace(PARTLY, status="complete"), "it is complete, and has only the tests of -k a"),
        (BASE, replace(BASE, series=replace(BASE.series, device="cuda")), "it ran on cuda, of the kind cpu"),
        (BASE, replace(BASE, notes=("9 damaged lines were left out",)), "9 damaged lines were left out"),
    ],
)
def test_compare_of_a_record_that_contradicts_itself_says_so(old: Record, new: Record, text: str) -> None:
    result = compare(old, new)
    assert f"the new record contradicts itself: {text}" in " ".join(to_text(Comparisons((result,))).split())
    assert not result.identical
    assert not any(compare(record, record).environment.contradictions for record in (old, new))


def test_compare_says_what_only_the_old_record_notes_and_which_clauses_lost_their_tests() -> None:
    tested = replace(FULL, notes=("accepted",), suite=replace(FULL.suite, clauses_with_tests=("a.b",)))
    untested = replace(FULL, suite=replace(FULL.suite, clauses_without_tests=("a.b",), commit="a" * 40 + "+"))
    text = to_text(Comparisons((compare(tested, untested),)))
    for line in ("only the old record notes: accepted", "clauses without tests now: 1: a.b", "aaa → aaaaaaaaaaaa+"):
        assert line in text


SHIFTED = {"loss": (2.0, 3.0, 4.0), "exact": (2.0, 3.0, 4.0)}


def test_compare_of_another_reference_compares_errors() -> None:
    far = change_curves(**{**SHIFTED, "loss": (2.0, 3.5, 4.0)})
    assert [change.kind for change in compare(FULL, change_curves(**SHIFTED)).changes] == [ChangeKind.ORACLE_CHANGED]
    oracle, drift = compare(FULL, far).changes
    assert (oracle.kind, drift.kind) == (ChangeKind.ORACLE_CHANGED, ChangeKind.DRIFT)
    assert "the oracle itself differs, so errors are compared: 0 before at update 1" in drift.detail


REVISED = "3: different revisions of the clause: 1 and 7"
UNCOMPARED = "1 of 3 tests were not compared; the suite itself differs: judging"


@pytest.mark.parametrize(
    ("new", "status", "text"),
    [
        (change_every(runs=(RunSetup("sincos", {"seed": 4}),)), 2, "3: different training recipes"),
        (change_every(runs=(RunSetup("small", {"seed": 3}),)), 2, "3: different training recipes"),
        (change_every(runs=()), 2, "3: different training recipes"),
        (change_every(setup_hash="other"), 2, "3: different training setups"),
        (change_clause(revision=7), 2, REVISED),
        (replace(FULL, verdicts=FULL.verdicts[:1]), 2, "33% of the tests that the old record judged are comparable"),
        (replace(change_areas("judging"), verdicts=FULL.verdicts[1:]), 0, UNCOMPARED),
        (change_areas("adapter", "judging"), 0, "the suite differs: adapter, judging suite commit: aaaaaaaaaaaa → bb"),
        (replace(FULL, suite=replace(FULL.suite, areas={})), 0, "the suite may differ: an older record does not name"),
        (replace(FULL, suite=replace(FULL.suite, version="9.9")), 0, "suite version: 0.1 → 9.9"),
        (replace(FULL, observations=()), 1, "3 removed: formats/test_a › add"),
    ],
)
def test_compare_of_a_changed_suite_names_the_change(new: Record, status: int, text: str) -> None:
    result = compare(FULL, new)
    assert result.status == status
    assert text in " ".join(to_text(Comparisons((result,))).split())


def test_compare_of_identical_and_of_rounded_numbers_has_no_change() -> None:
    same = compare(FULL, FULL)
    assert {number.movement for number in same.numbers} == {Movement.IDENTICAL}
    assert ": identical (3 of 3 tests compared)" in headline(same)
    assert "**Conformance: nothing is worse: identical.**" in markdown(Comparisons((same,)))
    curves = {"loss": (1.0, math.nextafter(2.0, 3.0), 3.0)}
    moved = compare(FULL, replace(change_curves(**curves), tensors=change_arrays(LOW, ARRAYS[1]).tensors))
    assert (moved.changes, moved.status, moved.identical) == ((), 0, False)
    assert Counter(str(number.movement) for number in moved.numbers) == {"identical": 2, "rounding": 1}
    (number,) = (number for number in moved.numbers if number.movement is not Movement.IDENTICAL)
    assert (number.test, number.detail) == (TESTS[0], "losses differ from update 1 on; arrays differ")
    assert number.tensor == "output/a (float32), by 1 unit in the last place of its sampled values"
    text = markdown(Comparisons((moved,)))
    assert "output/a (float32), by 1 unit" in text[text.index("<details><summary>Numbers: ") :]
    assert "output/a" not in to_text(Comparisons((moved,)))


def test_compare_of_a_drift_or_a_failure_names_the_first_tensor_that_differs() -> None:
    drifted = replace(change_check(measured=0.9), tensors=change_arrays(LOW, ARRAYS[1]).tensors)
    for new, kind in (
        (drifted, ChangeKind.DRIFT),
        (change_verdict(drifted, 0, outcome=Outcome.FAIL), ChangeKind.NEWLY_FAILING),
    ):
        (change,) = compare(FULL, new).changes
        assert change.kind is kind
        assert "first tensor that differs: output/a (float32), by 1 unit in the last place" in change.detail


@pytest.mark.parametrize(
    ("before", "after", "drifts"),
    [
        (0.01, 0.49, False),
        (0.01, 0.51, True),
        (0.3, 0.6, False),
        (0.2, 0.61, True),
        (0.0, 0.6, True),
        (0.6, 0.6, False),
        (0.99, 0.01, False),
    ],
)
def test_compare_of_an_error_drifts_if_it_tripled_and_passes_half_of_its_bound(
    before: float, after: float, drifts: bool
) -> None:
    result = compare(change_check(measured=before), change_check(measured=after))
    assert [change.kind for change in result.changes] == [ChangeKind.DRIFT] * drifts
    movements = {number.test: number.movement for number in result.numbers}
    assert (movements[TESTS[0]] is Movement.IDENTICAL) is (before == after)


@pytest.mark.parametrize(
    ("fail_on", "statuses"), [("worse", (0, 0, 1, 2)), ("drift", (0, 1, 1, 2)), ("never", (0, 0, 0, 2))]
)
def test_compare_with_fail_on_gives_the_status(fail_on: str, statuses: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path / "old.json", FULL)
    grown = replace(FULL, measurements=bytes_of(101.0).measurements)
    for new, status in zip((FULL, change_check(measured=0.9), grown, replace(FULL, seed=1)), statuses, strict=True):
        write(tmp_path / "new.json", new)
        result = call_command("compare", tmp_path / "old.json", tmp_path / "new.json", f"--fail-on={fail_on}")
        assert result.status == status, result.lines


def test_compare_of_another_setup_leaves_out_its_observations_and_costs() -> None:
    observed = change_verdict(replace_observations(**{"rule/test_b[1]": "keep"}), 1, setup_hash="d")
    counted = change_verdict(make_measured_record({"bytes/test_a": (101.0,)}), 0, setup_hash="d")
    failing = change_verdict(BASE, 0, outcome=Outcome.FAIL, setup_hash="d")
    for new, subjects in (
        (observed, {TESTS[1], f"{CLAUSE}/rule/test_b[1]"}),
        (counted, {TESTS[0], "bytes/test_a"}),
        (failing, {TESTS[0]}),
    ):
        result = compare(BASE, new)
        assert {(c.kind, c.subject) for c in result.changes} == {(ChangeKind.NOT_COMPARABLE, name) for name in subjects}
        assert (result.status, result.compared, len(result.numbers)) == (0, 2, 2)


@pytest.mark.parametrize("key", ["reason", "instead"])
def test_compare_of_the_words_of_a_reason_is_no_change(key: str) -> None:
    old, reworded, supported = (
        replace_observations(**{"optimizer.clip/test_a": {"declared": declared, key: reason}})
        for declared, reason in ((False, "there is no clipping"), (False, "no clipping"), (True, ""))
    )
    assert compare(old, reworded).changes == ()
    assert [change.subject for change in compare(old, supported).changes] == [
        f"{CLAUSE}/optimizer.clip/test_a › declared"
    ]


NEAR = (replace(BOUND, what="distance of the accuracy", measured=0.0, bound=0.05),)


@pytest.mark.parametrize(
    ("old", "new", "checks", "changes"),
    [
        (0.906, 0.91, NEAR, 0),
        (0.906, 0.7, NEAR, 1),
        *((0.906, new, (), int(new != 0.906)) for new in (0.906, 0.91, 0.7)),
        *(({"measured": 6.78025}, {"measured": 6.78025 * (1 + share)}, (), share > 1e-6) for share in (5e-7, 5e-6)),
    ],
)
def test_compare_of_observed_numbers_allows_their_bound_or_last_digits(
    old: object, new: object, checks: tuple[CheckResult, ...], changes: int
) -> None:
    sides = [
        change_verdict(replace_observations(**{"accuracy/test_a": value}), 0, checks=checks) for value in (old, new)
    ]
    assert [change.kind for change in compare(*sides).changes] == [ChangeKind.OBSERVATION_CHANGED] * changes


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (replace(BASE, series=replace(BASE.series, framework="tf")), "different frameworks: torch and tf"),
        (replace(BASE, series=replace(BASE.series, mode="")), "different modes: eager and none"),
        (replace(BASE, series=replace(BASE.series, device_kind="H100")), "different kinds of device: cpu and H100"),
        (replace(BASE, seed=3), "different seeds: 0 and 3"),
        (replace(BASE, status="interrupted"), "the new run was interrupted"),
        (replace(BASE, verdicts=()), ""),
    ],
)
def test_compare_of_runs_that_differ_is_refused(new: Record, message: str) -> None:
    result = compare(BASE, new)
    assert result.status == 2
    assert message in " ".join(result.refusals)


PART = replace(BASE.only(TESTS[1:]), status="partial", selection="--tests=quick")


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (BASE, PART, 0),
        (PART, BASE, 0),
        (BASE, change_verdict(PART, 0, outcome=Outcome.FAIL), 1),
        (change_verdict(BASE, 0, outcome=Outcome.FAIL), PART, 0),
        (BASE, replace(PART.only(())), 2),
        (PART, replace(PART, selection="-k scaling"), 2),
    ],
    ids=["part", "then whole", "worse", "not selected", "nothing", "two parts"],
)
def test_compare_of_a_part_takes_its_tests(old: Record, new: Record, status: int) -> None:
    result = compare(old, new)
    assert result.status == status
    assert bool(result.refusals) is (old.selection == "--tests=quick" and new.selection == "-k scaling")
    assert {change.subject for change in result.changes} <= {*TESTS[1:2]}
    assert result.of == (0 if result.refusals else len(old.verdicts))


def test_compare_sets_pairs_records_by_series() -> None:
    tf = replace(BASE, series=replace(BASE.series, framework="tf", mode="graph"))
    paddle = replace(BASE, series=replace(BASE.series, framework="paddle"))
    result = compare_sets([BASE, tf], [change_verdict(tf, 0, outcome=Outcome.FAIL), BASE])
    assert [pair.status for pair in result.pairs] == [1, 0]
    assert result.status == 1
    unmatched = compare_sets([BASE, tf], [BASE, paddle])
    assert unmatched.status == 2
    assert unmatched.unmatched == (
        "paddle eager cpu: only among the new records",
        "tf graph cpu: only among the old records",
    )
    for text in (markdown(unmatched), to_text(unmatched)):
        assert "tf graph cpu: only among the old records" in text
        assert "cannot be judged: records without a partner: 2" in text
    with pytest.raises(RecordError, match=r"include two records of torch eager cpu \(2.13.0 and 2.13.0\)"):
        compare_sets([BASE, BASE], [BASE, tf])


ANY = st.floats() | st.sampled_from([0.0, 1e308, -1e308, 5e-324, math.inf, math.nan])
SERIES = st.lists(ANY, max_size=4).map(tuple)
TRACES = st.fixed_dictionaries({"loss": SERIES}, optional=dict.fromkeys(("exact", "spread", "bound"), SERIES))
CHECKS = st.builds(
    CheckResult, st.just("error"), ANY | ANY.map(repr) | st.none() | st.text(), ANY, st.none(), st.just(True)
)
TENSORS = st.lists(ANY, max_size=3).map(lambda values: (_fingerprint(values),))


def _fingerprint(values: list[float]) -> Fingerprint:
    with np.errstate(over="ignore", invalid="ignore"):
        return fingerprint("output/a", np.array(values))


@st.composite
def records(draw: st.DrawFn) -> Record:
    traces, tensors = (loss(draw(TRACES)),), (Tensors("layers", "test_a", draw(TENSORS)),)
    derived = {"multiplier": draw(ANY)}
    checks = tuple(replace(check, derivation=derived, passed=True) for check in draw(st.lists(CHECKS, max_size=3)))
    costs = (Measurement(CLAUSE, "bytes", "test_a", "B", draw(SERIES), draw(SERIES)),)
    return replace(change_verdict(BASE, 0, checks=checks), traces=traces, tensors=tensors, measurements=costs)


@given(records(), records())
@settings(max_examples=150)
def test_compare_of_any_numbers_classes_and_prints_them(old: Record, new: Record) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same, pair = compare(old, old), compare(old, new)
        assert {number.movement for number in same.numbers} <= {Movement.IDENTICAL}
        assert same.identical
        assert sum(number.movement is Movement.DRIFT for number in pair.numbers) == pair.drifted
        for form in (to_text, markdown):
            form(Comparisons((pair,)))


def test_compare_of_an_update_that_judges_nothing_has_no_drift() -> None:
    curves = ({"loss": (1.0, second), "bound": (0.1, math.inf)} for second in (2.0, 9.0))
    unjudged = [replace(BASE, traces=(loss(curve),)) for curve in curves]
    assert not compare(*unjudged).changes
    chaotic = change_verdict(BASE, 0, checks=(CheckResult("e", 0.1, 1.0, None, True, {"multiplier": 4.0}),))
    traces = [loss({"loss": (1.0, second), "exact": (1.0, 1.0), "spread": (1e-3, 0.2)}) for second in (1.0, 9.0)]
    assert not compare(*(replace(chaotic, traces=(trace,)) for trace in traces)).changes
    without_bound = change_curves("bound", loss=(1.0, 2.5, 3.0))
    assert [change.kind for change in compare(change_curves("bound"), without_bound).changes] == [ChangeKind.DRIFT], (
        "the spread is the bound"
    )
    timing = replace(BASE, clauses={CLAUSE: replace(BASE.clauses[CLAUSE], level="MEASUREMENT")})
    errors = [change_verdict(timing, 0, checks=(CheckResult("times", error, 1.0, None, True),)) for error in (0.1, 0.9)]
    result = compare(*errors)
    assert (result.changes, result.numbers) == ((), ())


def change_second_array(**changes: Any) -> tuple[Fingerprint, ...]:
    return ARRAYS[0], replace(ARRAYS[1], **changes)


DOUBLE = fingerprint("gradient/a", 2 * VALUES)
BRAIN, LATER_BRAIN = (fingerprint("output/a", np.array([value], ml_dtypes.bfloat16)) for value in (1.0, 1.015625))
INFINITE = fingerprint("output/a", np.where(np.arange(5) == 0, np.float32(np.inf), VALUES))
WHOLE, OTHER_WHOLE = (fingerprint("output/a", np.array([value])) for value in (1, 2))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (ARRAYS, ARRAYS, ""),
        (ARRAYS, (LOW, DOUBLE), "output/a (float32), by 1 unit in the last place of its sampled values"),
        (ARRAYS, change_second_array(digest="0" * 16), "gradient/a (float32), outside the sampled values"),
        (ARRAYS, change_second_array(format="float16"), "gradient/a, float32[5] before and float16[5] now"),
        (ARRAYS, change_second_array(shape=(1, 5)), "gradient/a, float32[5] before and float32[1, 5] now"),
        (
            ARRAYS,
            change_second_array(digest="0" * 16, sample="AAAA"),
            "gradient/a (float32), with unreadable sampled values",
        ),
        (
            ARRAYS,
            change_second_array(digest="0" * 16, sample="A"),
            "gradient/a (float32), with unreadable sampled values",
        ),
        (ARRAYS, change_second_array(name="gradient/b"), "gradient/b (float32), only in the new record"),
        (ARRAYS, ARRAYS[:1], "gradient/a (float32), only in the old record"),
        (ARRAYS, ARRAYS[::-1], "the order of the same arrays"),
        ((BRAIN,), (LATER_BRAIN,), "output/a (bfloat16), by 2 units in the last place of its sampled values"),
        ((WHOLE,), (OTHER_WHOLE,), "output/a (int64), with unreadable sampled values"),
    ],
)
def test_first_difference_of_arrays_names_it(
    old: tuple[Fingerprint, ...], new: tuple[Fingerprint, ...], message: str
) -> None:
    assert first_difference(old, new) == message
    assert differs(old, new) is bool(message)
    assert "finite in only one record" in first_difference(ARRAYS, (INFINITE, ARRAYS[1]))


@pytest.mark.parametrize(("times", "controlled"), [(2.0, True), (0.5, False)])
def test_compare_of_times_does_not_judge_them(times: float, controlled: bool) -> None:
    new = make_timed_record(2, times, controlled=controlled)
    for old in (make_timed_record(1, 1.0, controlled=controlled), BASE):
        result = compare(old, new)
        assert ([c.kind for c in result.changes], result.status) == ([ChangeKind.NOT_JUDGED], 0)
        for text in (to_text(Comparisons((result,))), markdown(Comparisons((result,)))):
            assert "1 timing not judged here" in text
            assert "run both versions alternately on one machine" in " ".join(text.split())


@pytest.mark.parametrize(
    ("level", "old", "new", "kind", "measures"),
    [
        ("MEASUREMENT", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.PASS, ChangeKind.NOT_JUDGED, ()),
        ("MEASUREMENT", Outcome.ABSTAIN, Outcome.FAIL, ChangeKind.NEWLY_FAILING, ()),
        ("MEASUREMENT", Outcome.PASS, Outcome.UNSUPPORTED, ChangeKind.NEWLY_UNJUDGED, (ChangeKind.REMOVED,)),
        ("MUST", Outcome.PASS, Outcome.ABSTAIN, ChangeKind.NEWLY_UNJUDGED, (ChangeKind.REMOVED,)),
    ],
)
def test_compare_of_a_cost_without_its_control_does_not_judge_it(
    level: str, old: Outcome, new: Outcome, kind: ChangeKind, measures: tuple[ChangeKind, ...]
) -> None:
    leveled = replace(BASE, clauses={CLAUSE: replace(BASE.clauses[CLAUSE], level=level)})
    before, after = change_verdict(leveled, 1, outcome=old), change_verdict(leveled, 1, outcome=new)
    measurements = BASE.measurements[:1]
    if new in (Outcome.ABSTAIN, Outcome.UNSUPPORTED):
        after = replace(after, measurements=measurements)
    else:
        before = replace(before, measurements=measurements)
        measures = (ChangeKind.ADDED,) if old is not Outcome.ABSTAIN else ()
    result = compare(before, after)
    assert sorted(change.kind for change in result.changes) == sorted((kind, *measures))


TIMES = 1.0 + np.random.default_rng(3).gamma(2.0, 0.02, (4, FEWEST))


def test_ratio_has_the_interval_of_student_of_the_trimmed_mean() -> None:
    logs = np.sort(np.log(TIMES[1] / TIMES[0]))
    cut = int(TRIMMED * FEWEST)
    winsorized = np.clip(logs, logs[cut], logs[-cut - 1])
    error = winsorized.std(ddof=1) / ((1.0 - 2.0 * TRIMMED) * math.sqrt(FEWEST))
    reach = stats.t.ppf(0.5 + CONFIDENCE / 2.0, FEWEST - 2 * cut - 1) * error
    result = ratio(tuple(TIMES[0]), tuple(TIMES[1]))
    middle = logs[cut:-cut].mean()
    assert (math.log(result.low), math.log(result.high)) == pytest.approx((middle - reach, middle + reach))


def test_ratio_of_noise_seldom_grew_and_of_five_percent_mostly_did() -> None:
    rng = np.random.default_rng(4)
    alarms = result = 0
    for _ in range(300):
        old, new = np.exp(rng.normal(0.0, 0.025, (4, FEWEST)))[:2]
        same, slower = ratio(old, new), ratio(old, 1.05 * new)
        alarms += same.grew or same.shrank
        result += slower.grew
    assert alarms <= 3
    assert result >= 285


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ((), (1.0,), "no samples"),
        ((0.0,), (1.0,), "not a positive number"),
        ((1.0,), (math.nan,), "not a positive number"),
        ((1.0,), (math.inf,), "not a positive number"),
        ((1.0, 2.0), (1.0, 1.0), f"2 pairs that vary are too few: {FEWEST} are needed"),
        *((samples, samples, "ratio 1, without any spread") for samples in ((0.0,), (math.nan, 1.0), (1.0, 2.0))),
    ],
)
def test_ratio_without_comparable_samples_says_why(old: tuple[float, ...], new: tuple[float, ...], reason: str) -> None:
    result = ratio(old, new)
    assert result.summary == reason if old is new else reason in result.summary
    assert not any((result.judged and old is not new, result.grew, result.shrank))


@pytest.mark.filterwarnings("error")
def test_ratio_of_disturbed_or_negligible_samples_did_not_grow() -> None:
    outliers = TIMES[1].copy()
    outliers[: FEWEST // 8] *= 10.0
    quiet, disturbed = ratio(TIMES[0], TIMES[1]), ratio(TIMES[0], outliers)
    assert disturbed.low == pytest.approx(quiet.low, abs=0.01)
    assert not disturbed.grew
    slower = ratio(TIMES[0], (1.0 + 0.9 * SMALLEST) * TIMES[0] * np.tile([0.9999, 1.0001], FEWEST // 2))
    assert slower.low > 1.0
    assert not slower.grew
    assert ratio((4.0,), (5.0,)).low == ratio((4.0,), (5.0,)).high == 1.25
    assert ratio((1.0, 1.0, 1.0), (2.0,)).pairs == 1
    assert ratio(TIMES[0], np.append(TIMES[1], 100.0)).high == quiet.high


@pytest.mark.parametrize(("before", "after", "kind"), [(5, 6, "altered"), (6, 5, "observation changed")])
def test_compare_more_calls_that_agree_is_no_loss(before: int, after: int, kind: str) -> None:
    clause = "composition.calls-agree"
    sides = [replace(BASE, observations=(Observation(clause, "calls", "test_a", count),)) for count in (before, after)]
    assert [change.kind.value for change in compare(*sides).changes] == [kind]
