"""Bisection of sequences, and the crossing of environments that names the guilty package."""

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.sweep.bisection import (
    Answer,
    Boundary,
    Crossing,
    Side,
    UnstableEnd,
    bisect,
    companions_of,
    cross,
    differences,
)
from conformance.sweep.plan import SweepCell

GOOD = {"jax": "0.9.2", "jaxlib": "0.9.2", "optax": "0.2.8", "flax": "0.12.6", "etils": "1.14", "new": "1"}
BAD = {"jax": "0.6.2", "jaxlib": "0.6.2", "optax": "0.2.5", "flax": "0.10.7", "etils": "1.12"}
Versions = Mapping[str, str]


def search(first: int, count: int, skipped: Mapping[int, str]) -> tuple[Boundary, list[int]]:
    """The boundary of a sequence that is bad from `first`, and the members that the search judged."""
    judged: list[int] = []

    def state(index: int) -> Answer:
        if index in skipped:
            return "", skipped[index]
        return ("bad" if index >= first else "good"), ""

    def ask(index: int) -> Answer:
        judged.append(index)
        return state(index)

    return bisect(count, ask, state), judged


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, dict[int, str]]:
    """An index of the change, a count, and members without a state."""
    count = draw(st.integers(2, 500))
    holes = st.sets(st.integers(1, max(1, count - 2)), max_size=count)
    skipped = draw(st.just(set()) | holes) if count > 2 else set()
    return draw(st.integers(1, count - 1)), count, {index: f"no wheel {index}" for index in skipped}


@given(sequences())
def test_bisect_of_a_sequence_finds_the_change_or_the_range_of_its_holes(
    sequence: tuple[int, int, dict[int, str]],
) -> None:
    first, count, skipped = sequence
    result, judged = search(first, count, skipped)
    assert result.good < first <= result.bad
    assert {result.good, result.bad}.isdisjoint(skipped)
    assert {*range(result.good + 1, result.bad)} == {*result.between}
    assert all(reason == skipped[index] for index, reason in result.between.items())
    assert len(judged) == len({*judged})
    assert skipped or len(judged) <= math.ceil(math.log2(count))
    assert {0, count - 1} & {*judged} == set()


@given(sequences(), st.data())
def test_bisect_unstable_member_becomes_a_hole(sequence: tuple[int, int, dict[int, str]], data: st.DataObject) -> None:
    first, count, _ = sequence
    unstable = data.draw(st.sets(st.integers(1, max(1, count - 2)), max_size=3)) if count > 2 else set()

    def state(index: int) -> Answer:
        return ("bad" if index >= first else "good"), ""

    result = bisect(count, state, lambda index: ("", "unstable") if index in unstable else state(index))
    assert result.good < first <= result.bad
    assert {result.good, result.bad} & unstable == set()
    assert {*range(result.good + 1, result.bad)} <= {*result.skipped} <= unstable


def test_bisect_unstable_end_is_refused() -> None:
    with pytest.raises(UnstableEnd) as raised:
        bisect(2, lambda _: ("good", ""), lambda index: ("good" if index else "bad", "it passes now"))
    assert raised.value.args == (1, "it passes now")


def find_crossing(
    fails: Callable[[Versions], bool], impossible: Callable[[Versions], bool] = lambda _: False
) -> Crossing:
    """The crossing for a function of versions that says what fails."""
    good, bad = (SweepCell("jax", pins["jax"], "jax", pins["jax"]) for pins in (GOOD, BAD))

    def judge(cell: SweepCell) -> tuple[Side, str]:
        versions = {**(GOOD if cell.version == GOOD["jax"] else BAD), **cell.companions}
        if impossible(versions):
            return "", "no solution: they do not go together"
        return ("bad", "") if fails(versions) else ("good", "")

    return cross(good, bad, (GOOD, BAD), judge)


def test_companions_of_cell_are_packages_that_compute() -> None:
    different = differences(GOOD, BAD)
    assert different["new"] == ("1", "")
    assert companions_of(SweepCell("jax", "0.6.2", "jax", "0.6.2"), different) == ["flax", "optax"]
    assert companions_of(SweepCell("jax", "0.6.2", "optax", "0.2.5"), ["optax", "jaxlib", "numpy"]) == ["numpy"]


@pytest.mark.parametrize("name", ["jax", "optax", "flax"])
def test_cross_package_that_decides_is_guilty(name: str) -> None:
    result = find_crossing(lambda versions: versions[name] == BAD[name])
    assert result.guilty == name
    assert all(cell.side for cell in result.cells)
    assert len(result.cells) == {"jax": 2, "flax": 3, "optax": 4}[name]


def test_cross_companion_that_cannot_be_reverted_is_added() -> None:
    def fails(versions: Versions) -> bool:
        return versions["optax"] == BAD["optax"]

    def impossible(versions: Versions) -> bool:
        return versions["flax"] == BAD["flax"] and versions["optax"] == GOOD["optax"]

    result = find_crossing(fails, impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["good", "bad", "bad", "", "bad"]


def test_cross_companions_refused_together_come_one_by_one() -> None:
    def impossible(versions: Versions) -> bool:
        return versions["jax"] == BAD["jax"] and versions["flax"] == GOOD["flax"]

    result = find_crossing(lambda versions: versions["optax"] == BAD["optax"], impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["", "bad", "", "good"]
    either = find_crossing(lambda versions: "0.6.2" in versions.values() or versions["optax"] == "0.2.5", impossible)
    assert (either.guilty, either.why) == ("", "no package decides alone")


def test_cross_two_packages_together_are_both_named() -> None:
    result = find_crossing(lambda versions: versions["optax"] == "0.2.5" and versions["jax"] == "0.6.2")
    assert result.guilty == ""
    assert result.why == "jax and optax together give the failure: either of them reverted alone passes"
    several = find_crossing(lambda versions: versions["jax"] == "0.6.2" and versions["flax"] == "0.10.7")
    assert several.why == "jax and flax together give the failure: either of them reverted alone passes"


def test_cross_two_packages_alone_are_not_guilty() -> None:
    result = find_crossing(lambda versions: versions["optax"] == "0.2.5" or versions["jax"] == "0.6.2")
    assert (result.guilty, result.why) == ("", "either jax or its companions alone give the failure")


def test_cross_impossible_mixture_has_a_reason() -> None:
    result = find_crossing(
        lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == BAD["flax"]
    )
    assert (result.guilty, result.why) == (
        "jax",
        "jax 0.6.2 fails with the companions of 0.9.2; the reverse cannot be judged",
    )
    result = find_crossing(
        lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == GOOD["flax"]
    )
    assert result.guilty == "jax"
    nothing = find_crossing(lambda _: True, lambda _: True)
    assert (nothing.guilty, nothing.why) == ("", "no package decides alone")
    assert {cell.reason for cell in nothing.cells} == {"no solution: they do not go together"}


def test_cross_without_companions_judges_nothing() -> None:
    good, bad = SweepCell("tf", "2.19.1", "keras", "3.9.0"), SweepCell("tf", "2.19.1", "keras", "3.8.0")
    result = cross(good, bad, ({"keras": "3.9.0"}, {"keras": "3.8.0"}), lambda _: pytest.fail("a cell is judged"))
    assert (result.guilty, result.cells, result.differences) == ("keras", (), {"keras": ("3.9.0", "3.8.0")})
