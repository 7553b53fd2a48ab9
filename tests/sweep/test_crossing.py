"""Mixed environments name the package whose version decides, also where it is a companion or where none does alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from conformance.sweep.cells import SweepCell
from conformance.sweep.crossing import Crossing, Side, companions_of, cross, differences
from frameworks.installer.resolution import Lock

GOOD = {"jax": "0.9.2", "jaxlib": "0.9.2", "optax": "0.2.8", "flax": "0.12.6", "etils": "1.14", "new": "1"}
BAD = {"jax": "0.6.2", "jaxlib": "0.6.2", "optax": "0.2.5", "flax": "0.10.7", "etils": "1.12"}
Versions = Mapping[str, str]


def crossed(fails: Callable[[Versions], bool], impossible: Callable[[Versions], bool] = lambda _: False) -> Crossing:
    """The crossing where a function of the versions of JAX, Flax and Optax says what fails."""
    good, bad = (SweepCell("jax", pins["jax"], "jax", pins["jax"]) for pins in (GOOD, BAD))

    def judge(cell: SweepCell) -> tuple[Side, str]:
        versions = {**(GOOD if cell.version == GOOD["jax"] else BAD), **cell.companions}
        if impossible(versions):
            return "", "no solution: they do not go together"
        return ("bad", "") if fails(versions) else ("good", "")

    return cross(good, bad, (Lock(("jax",), GOOD), Lock(("jax",), BAD)), judge)


def test_packages_that_compute_next_to_it_are_its_companions() -> None:
    different = differences(Lock((), GOOD), Lock((), BAD))
    assert different["new"] == ("1", "")
    assert companions_of(SweepCell("jax", "0.6.2", "jax", "0.6.2"), different) == ["flax", "optax"]
    assert companions_of(SweepCell("jax", "0.6.2", "optax", "0.2.5"), ["optax", "jaxlib", "numpy"]) == ["numpy"]


@pytest.mark.parametrize("name", ["jax", "optax", "flax"])
def test_the_package_that_decides_is_guilty(name: str) -> None:
    result = crossed(lambda versions: versions[name] == BAD[name])
    assert result.guilty == name
    assert all(cell.side for cell in result.cells)
    assert len(result.cells) == {"jax": 2, "flax": 3, "optax": 4}[name]


def test_a_companion_that_cannot_be_reverted_alone_is_added_alone() -> None:
    def fails(versions: Versions) -> bool:
        return versions["optax"] == BAD["optax"]

    def impossible(versions: Versions) -> bool:
        return versions["flax"] == BAD["flax"] and versions["optax"] == GOOD["optax"]

    result = crossed(fails, impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["good", "bad", "bad", "", "bad"]


def test_a_bad_release_that_refuses_the_good_companions_together_gets_them_one_by_one() -> None:
    def impossible(versions: Versions) -> bool:
        return versions["jax"] == BAD["jax"] and versions["flax"] == GOOD["flax"]

    result = crossed(lambda versions: versions["optax"] == BAD["optax"], impossible)
    assert result.guilty == "optax"
    assert [cell.side for cell in result.cells] == ["", "bad", "", "good"]
    either = crossed(lambda versions: "0.6.2" in versions.values() or versions["optax"] == "0.2.5", impossible)
    assert (either.guilty, either.why) == ("", "no package decides alone")


def test_two_packages_that_fail_only_together_are_both_named() -> None:
    result = crossed(lambda versions: versions["optax"] == "0.2.5" and versions["jax"] == "0.6.2")
    assert result.guilty == ""
    assert result.why == "jax and optax together give the failure: either of them reverted alone passes"
    several = crossed(lambda versions: versions["jax"] == "0.6.2" and versions["flax"] == "0.10.7")
    assert several.why == "jax and flax together give the failure: either of them reverted alone passes"


def test_two_packages_that_fail_alone_are_no_single_one() -> None:
    result = crossed(lambda versions: versions["optax"] == "0.2.5" or versions["jax"] == "0.6.2")
    assert (result.guilty, result.why) == ("", "either jax or its companions alone give the failure")


def test_what_cannot_be_mixed_has_a_reason() -> None:
    result = crossed(lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == BAD["flax"])
    assert (result.guilty, result.why) == (
        "jax",
        "jax 0.6.2 fails with the companions of 0.9.2; the reverse cannot be judged",
    )
    result = crossed(lambda versions: versions["jax"] == "0.6.2", lambda versions: versions["flax"] == GOOD["flax"])
    assert result.guilty == "jax"
    nothing = crossed(lambda _: True, lambda _: True)
    assert (nothing.guilty, nothing.why) == ("", "no package decides alone")
    assert {cell.reason for cell in nothing.cells} == {"no solution: they do not go together"}


def test_without_other_differences_the_package_is_guilty_at_once() -> None:
    good, bad = SweepCell("tf", "2.19.1", "keras", "3.9.0"), SweepCell("tf", "2.19.1", "keras", "3.8.0")
    locks = Lock((), {"keras": "3.9.0"}), Lock((), {"keras": "3.8.0"})
    result = cross(good, bad, locks, lambda _: pytest.fail("nothing is to be judged"))
    assert (result.guilty, result.cells, result.differences) == ("keras", (), {"keras": ("3.9.0", "3.8.0")})
