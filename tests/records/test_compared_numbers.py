"""Numbers and arrays of two records, whatever they are: nothing raises, and a record beside itself never moved."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.compare.changes import ChangeKind
from results.compare.comparison import Comparison, compare
from results.compare.numbers import Movement, number
from results.compare.pairing import Comparisons
from results.record.arrays import differs, fingerprint, first_difference
from results.record.fingerprints import Fingerprint
from results.record.reading import CheckResult, Curves, Measurement, Record, Tensors, Trace
from results.show.differences import document, markdown, to_text
from tests.support.small_record import BASE, CLAUSE, verdict

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


def loss(curves: Curves) -> Trace:
    return Trace("loss", "test_a", curves)


@st.composite
def records(draw: st.DrawFn) -> Record:
    """The base record with numbers of any kind."""
    traces, tensors = (loss(draw(TRACES)),), (Tensors("layers", "test_a", draw(TENSORS)),)
    derived = {"multiplier": draw(ANY)}
    checks = tuple(replace(check, derivation=derived, passed=True) for check in draw(st.lists(CHECKS, max_size=3)))
    costs = (Measurement(CLAUSE, "bytes", "test_a", "B", draw(SERIES), draw(SERIES)),)
    return replace(verdict(BASE, 0, checks=checks), traces=traces, tensors=tensors, measurements=costs)


@given(records(), records())
@settings(max_examples=150)
def test_whatever_the_numbers_are_they_are_classed_and_told(old: Record, new: Record) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone, pair = compare(old, old), compare(old, new)
        assert {one.movement for one in alone.numbers} <= {Movement.IDENTICAL}
        assert alone.identical
        assert sum(one.movement is Movement.DRIFT for one in pair.numbers) == pair.drifted
        for form in (to_text, markdown, document):
            form(Comparisons((pair,)))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("0.5", None), (2, 2.0), (1e-07, 1e-7), (True, None), ("float32[3][1.0, 2.0]", None), (None, None), ([1.0], None)],
)
def test_what_is_no_number_is_none(value: object, expected: float | None) -> None:
    assert number(value) == expected  # type: ignore[arg-type]


def moved(old: tuple[float, ...], new: tuple[float, ...], **series: tuple[float, ...]) -> Comparison:
    """Two records of a run with these losses."""
    base = replace(BASE, traces=(loss({"loss": old, **series}),))
    return compare(base, replace(BASE, traces=(loss({"loss": new, **series}),)))


def test_the_first_update_that_moved_too_far_is_told() -> None:
    result = moved((1.0, 2.0, 3.0), (1.1, 2.5, 9.0), bound=(0.2, 0.4, 0.4))
    (change,) = result.changes
    assert (change.kind, change.old, change.new) == (ChangeKind.DRIFT, "2", "2.5")
    assert (
        "the loss at update 1 is the first that moved by more than rounding explains: 0.5, 1.25 times" in change.detail
    )


def test_an_update_that_judges_nothing_drifts_never() -> None:
    assert not moved((1.0, 2.0), (1.0, 9.0), bound=(0.1, math.inf)).changes
    chaotic = verdict(BASE, 0, checks=(CheckResult("e", 0.1, 1.0, None, True, {"multiplier": 4.0}),))
    traces = [loss({"loss": (1.0, late), "exact": (1.0, 1.0), "spread": (1e-3, 0.2)}) for late in (1.0, 9.0)]
    assert not compare(*(replace(chaotic, traces=(trace,)) for trace in traces)).changes


def test_a_loss_that_is_no_number_any_more_drifts() -> None:
    assert [c.kind for c in moved((1.0,), (math.nan,), bound=(0.1,)).changes] == [ChangeKind.DRIFT]
    assert not moved((math.nan,), (math.nan,), bound=(0.1,)).changes


def test_another_number_of_updates_drifts() -> None:
    (change,) = moved((1.0, 2.0), (1.0,), bound=(0.1, 0.1)).changes
    assert (change.old, change.new, change.detail) == ("2 updates", "1 updates", "different numbers of updates")


def test_words_that_hold_numbers_name_the_same_check() -> None:
    def record(update: int, error: float) -> Record:
        return verdict(
            BASE, 0, checks=(CheckResult(f"distance of the loss at update {update}", error, 1.0, None, True),)
        )

    (change,) = compare(record(2, 0.1), record(4, 0.9)).changes
    assert change.kind is ChangeKind.DRIFT
    assert "at update 4: 9 times as large" in change.detail


def test_costs_are_no_numbers_of_this_kind() -> None:
    timing = replace(BASE, clauses={CLAUSE: replace(BASE.clauses[CLAUSE], level="MEASUREMENT")})
    errors = [verdict(timing, 0, checks=(CheckResult("times", error, 1.0, None, True),)) for error in (0.1, 0.9)]
    result = compare(*errors)
    assert (result.changes, result.numbers) == ((), ())


VALUES = np.linspace(1.0, 1.9, 5, dtype=np.float32)
BOTH = (fingerprint("output/a", VALUES), fingerprint("gradient/a", VALUES))


def later(**changes: object) -> tuple[Fingerprint, ...]:
    """The two with the second one changed."""
    return BOTH[0], replace(BOTH[1], **changes)  # type: ignore[arg-type]


def test_the_same_arrays_do_not_differ() -> None:
    assert not differs(BOTH, BOTH)
    assert first_difference(BOTH, BOTH) == ""


def test_the_first_in_the_order_of_the_computation_is_named() -> None:
    moved = fingerprint("output/a", np.nextafter(VALUES, np.float32(0)))
    both = (moved, fingerprint("gradient/a", 2 * VALUES))
    assert differs(BOTH, both)
    assert first_difference(BOTH, both) == "output/a (float32), by 1 unit in the last place of its sampled values"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (later(digest="0" * 16), "gradient/a (float32), outside the sampled values"),
        (later(format="float16"), "gradient/a, float32[5] before and float16[5] now"),
        (later(shape=(1, 5)), "gradient/a, float32[5] before and float32[1, 5] now"),
        (later(digest="0" * 16, sample="AAAA"), "gradient/a (float32), with unreadable sampled values"),
        (later(digest="0" * 16, sample="A"), "gradient/a (float32), with unreadable sampled values"),
        (later(name="gradient/b"), "gradient/b (float32), only in the new record"),
        (BOTH[:1], "gradient/a (float32), only in the old record"),
        (BOTH[::-1], "the order of the same arrays"),
    ],
)
def test_whatever_differs_is_told(new: tuple[Fingerprint, ...], message: str) -> None:
    assert first_difference(BOTH, new) == message


def test_a_value_that_is_no_number_any_more_is_told() -> None:
    broken = VALUES.copy()
    broken[0] = np.inf
    assert "finite in only one record" in first_difference(BOTH, (fingerprint("output/a", broken), BOTH[1]))


def test_formats_that_have_no_last_place_are_told_without_one() -> None:
    old, new = (fingerprint("output/a", np.array([value])) for value in (1, 2))
    assert first_difference((old,), (new,)) == "output/a (int64), with unreadable sampled values"
