"""Crosses the environments of the last good and the first bad release, to name the guilty package."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from conformance.sweep.cells import SweepCell
from frameworks.installer.resolution import Lock, distribution_of
from results.compare.environment import BUNDLED, COMPANIONS, LIBRARIES, ON_A_GPU

Side = Literal["good", "bad", ""]
"""The state of a cell, "" if it cannot be judged."""

MOST = 8
"""Companions that are reverted one by one."""


@dataclass(frozen=True)
class CrossedCell:
    """A mixed environment.

    Attributes:
        what: it in words.
        reason: why it cannot be judged.
    """

    what: str
    side: Side
    reason: str = ""


@dataclass(frozen=True)
class Crossing:
    """The environments that were mixed, and what follows.

    Attributes:
        guilty: the package whose version decides, "" if none does alone.
        why: one sentence.
        differences: versions by package in the good and in the bad environment, "" where it is missing.
        cells: in the order in which they were judged.
    """

    guilty: str
    why: str
    differences: Mapping[str, tuple[str, str]]
    cells: tuple[CrossedCell, ...]


def differences(good: Lock, bad: Lock) -> dict[str, tuple[str, str]]:
    """Packages with other versions in two environments."""
    names = sorted({*good.pins, *bad.pins})
    both = {name: (good.pins.get(name, ""), bad.pins.get(name, "")) for name in names}
    return {name: versions for name, versions in both.items() if versions[0] != versions[1]}


def companions_of(cell: SweepCell, different: Collection[str]) -> list[str]:
    """The packages among these that compute next to the varying one, those that the adapter declares first.

    Packages that the framework's own wheel requires in one version are not among them.
    """
    chosen = distribution_of(cell.framework)
    declared = () if chosen is None else chosen.companions_in([cell.mode])
    known = dict.fromkeys([*declared, *sorted(COMPANIONS | LIBRARIES)])
    known.pop(cell.package, None)
    return [name for name in known if name in different and not name.startswith((*BUNDLED, *ON_A_GPU))]


def cross(
    good: SweepCell, bad: SweepCell, locks: tuple[Lock, Lock], judge: Callable[[SweepCell], tuple[Side, str]]
) -> Crossing:
    """Judges mixed environments until one package is left.

    Args:
        good, bad: the cells next to the boundary.
        locks: of the good and of the bad one.
        judge: the side of a cell, and why it has none.
    """
    different, package = differences(*locks), bad.package
    companions = companions_of(bad, different)
    cells: list[CrossedCell] = []

    def side(base: SweepCell, lock: Lock, what: str, apart: Mapping[str, str] | None = None) -> Side:
        """The side of a release with companions of a lock, and with those of `apart` in its versions."""
        pins = {name: lock.pins[name] for name in companions if name in lock.pins}
        result, reason = judge(replace(base, companions={**base.companions, **pins, **(apart or {})}))
        cells.append(CrossedCell(what, result, reason))
        return result

    def named(guilty: str, why: str) -> Crossing:
        return Crossing(guilty, why, different, tuple(cells))

    if not companions:
        return named(package, f"{package} is the only package that computes and has another version")
    old, new = locks
    old_companions = f"{package} {bad.version} with the companions of {good.version}"
    with_old = side(bad, old, old_companions)
    with_new = side(good, new, f"{package} {good.version} with the companions of {bad.version}")
    if (with_old, with_new) == ("bad", "good"):
        return named(package, f"{package} decides, whatever its companions")
    if (with_old, with_new) == ("bad", ""):
        fails = f"{package} {bad.version} fails with the companions of {good.version}"
        return named(package, f"{fails}; the reverse cannot be judged")
    if (with_old, with_new) == ("", "good"):
        passes = f"{package} {good.version} passes with the companions of {bad.version}"
        return named(package, f"{passes}; the reverse cannot be judged")
    if with_old == "good" or (with_old, with_new) == ("", "bad"):
        for name in [each for each in companions if old.pins.get(each)][:MOST]:
            what = f"{package} {bad.version} and its companions, but {name} {old.pins[name]}"
            result = side(bad, new, what, {name: old.pins[name]})
            if (with_old, result) == ("good", "") and new.pins.get(name):
                what = f"{old_companions}, but {name} {new.pins[name]}"
                turned: dict[Side, Side] = {"bad": "good", "good": "bad", "": ""}
                result = turned[side(bad, old, what, {name: new.pins[name]})]
            if result == "good" and with_new == "good":
                why = f"{package} and {name} together give the failure: either of them reverted alone passes"
                return named("", why)
            if result == "good":
                reverse = f"; {package} of the good environment fails with the bad companions" if with_new else ""
                alone = f"of the companions {name} alone decides next to the {package} of the bad environment"
                return named(name, f"{alone}{reverse}")
    if with_new == "bad" and with_old == "bad":
        return named("", f"either {package} or its companions alone give the failure")
    if with_new == "good" and with_old == "good":
        return named("", f"only {package} and several companions together give the failure")
    return named("", "no package decides alone")
