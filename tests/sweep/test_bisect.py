"""Bisection of sequences: the change is found, or a range where members next to it have no state."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.sweep.bisect import Boundary, StateAnswer, UnstableEnd, bisect


def search(first: int, count: int, skipped: Mapping[int, str]) -> tuple[Boundary, list[int]]:
    """The boundary of a sequence whose state changes at `first`, and the members that were asked."""
    asked: list[int] = []

    def ask(place: int) -> StateAnswer:
        asked.append(place)
        if place in skipped:
            return StateAnswer("skip", skipped[place])
        return StateAnswer("new" if place >= first else "old")

    return bisect(count, ask), asked


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, dict[int, str]]:
    """A place of the change, a count, and members without a state."""
    count = draw(st.integers(2, 200))
    skipped = draw(st.sets(st.integers(1, max(1, count - 2)), max_size=count)) if count > 2 else set()
    return draw(st.integers(1, count - 1)), count, {place: f"no wheel {place}" for place in skipped}


@given(sequences())
def test_the_change_is_between_two_members_with_nothing_but_skipped_ones_between(
    sequence: tuple[int, int, dict[int, str]],
) -> None:
    first, count, skipped = sequence
    result, asked = search(first, count, skipped)
    assert result.old < first <= result.new
    assert result.old not in skipped
    assert result.new not in skipped
    assert {*range(result.old + 1, result.new)} == {*result.between}
    assert all(reason == skipped[place] for place, reason in result.between.items())
    assert len(asked) == len({*asked})
    assert {0, count - 1} & {*asked} == set()


@given(st.integers(2, 500), st.data())
def test_without_holes_it_takes_the_logarithm_of_the_count(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    result, asked = search(first, count, {})
    assert (result.old, result.new, result.between) == (first - 1, first, {})
    assert len(asked) <= math.ceil(math.log2(count))


@given(sequences(), st.data())
def test_a_member_that_is_unstable_when_it_is_confirmed_becomes_a_hole(
    sequence: tuple[int, int, dict[int, str]], data: st.DataObject
) -> None:
    first, count, _ = sequence
    unstable = data.draw(st.sets(st.integers(1, max(1, count - 2)), max_size=3)) if count > 2 else set()

    def state(place: int) -> StateAnswer:
        return StateAnswer("new" if place >= first else "old")

    result = bisect(count, state, lambda place: StateAnswer("skip", "unstable") if place in unstable else state(place))
    assert result.old < first <= result.new
    assert {result.old, result.new} & unstable == set()
    assert {*range(result.old + 1, result.new)} <= {*result.skipped} <= unstable


def test_an_end_with_another_state_the_second_time_ends_the_search() -> None:
    with pytest.raises(UnstableEnd) as raised:
        bisect(2, lambda _: StateAnswer("old"), lambda place: StateAnswer("old" if place else "new", "it passes now"))
    assert raised.value.args == (1, "it passes now")


def test_one_member_has_no_boundary() -> None:
    with pytest.raises(ValueError, match="members to bisect: got 1, want at least 2"):
        bisect(1, lambda _: StateAnswer("old"))
