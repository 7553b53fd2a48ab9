"""Judges what a framework's play left behind, verb by verb, against the oracle's.

Where no rounding of the oracle decides anything, values are the oracle's to the bit. Elsewhere a value may be as far
from the oracle's as `IMPLEMENTATION_FREEDOM` times the largest distance of a member of an ensemble, whose every
rounding goes up or down at random, and one unit in the last place of the largest value more. Where members disagree on
something that is counted, or on what is finite, rounding decides about it: the program is judged up to there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from conformance.judging.verdict import same_bits
from conformance.laws.members import NotesDrops, PartsAndTiles
from conformance.laws.observing import REFERENCE_MOMENTS, canonical, ends_by_itself
from conformance.laws.player import Observation, OraclePlayer, Play
from conformance.laws.programs import DrawnCase, StartAgain
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM, LEARNABLE
from fixtures.arrays import Array, format_of, wider
from fixtures.recipe import DynamicScaling
from frameworks.contract import Conventions
from frameworks.reference.arithmetic import Operations
from frameworks.reference.rounding import Exact, Rounding, Stochastic

MEMBERS = 8
FLOAT64 = 64 * 2.0**-53
"""How far a float64 value may be off, relatively, of which members are no further from each other than that."""
REPORTED = 4 * 2.0**-24
"""How far a loss or norm may be off that float32 cannot hold: it is computed in float32 and divided by items."""
COUNTED = (
    *("skipped", "scale_before", "scale_after", "good_steps", "raised", "refused", "steps", "schedule", "scale"),
    "dropped",
)
"""Last words of the names of what is counted or moves by powers of two; the rest are values that are rounded."""


@dataclass(frozen=True)
class Unlike:
    """The first difference.

    Attributes:
        place: the verb's place in the program.
        name: of the value, such as "parameter/0.weight".
        measured, expected: the two values.
        bound: the largest difference that was allowed, 0 where the bits had to be the same.
    """

    place: int
    name: str
    measured: Array
    expected: Array
    bound: float

    def __str__(self) -> str:
        if self.measured.shape != self.expected.shape or self.measured.size == 0:
            return f"{self.name}: shape {self.measured.shape} against {self.expected.shape}"
        left, right = (np.asarray(v, np.float64).ravel() for v in (self.measured, self.expected))
        gap = _gaps(left, right)
        worst = int(np.argmax(gap))
        count = int(np.sum(gap > self.bound))
        by = f"within {self.bound:.3g}" if self.bound else "to the bit"
        most = f"{left[worst].item()!r} against {right[worst].item()!r}"
        return f"{self.name}: {count} of {left.size} are not the oracle's {by}, furthest {most}"


def counted(name: str) -> bool:
    """Whether what has this name is counted, so that it cannot be off by a rounding."""
    return name.rsplit("/", 1)[-1].rsplit(".", 1)[0] in COUNTED or name.startswith("steps/")


class RoundedEverywhere(Stochastic):
    """Rounds float64 values too, each by up to half a unit, so that what cancels in one order of a sum is seen."""

    def round(self, array: Array, format_name: str, terms: int = 1) -> Array:
        if format_name != "float64":
            return super().round(array, format_name, terms)
        return np.asarray(array * (1.0 + 2.0**-52 * (self._rng.random(np.shape(array)) - 0.5)))


class RoundedApart(RoundedEverywhere):
    """Rounds equal values one by one, as kernels do that do not compute every row of a product in one way."""

    def _truncated(self, value: Array, dropped: int) -> Array:
        bits = value.reshape(-1).view(np.uint64)
        bits = bits + self._rng.integers(1 << dropped, size=bits.size, dtype=np.uint64)
        bits &= np.uint64((1 << 64) - (1 << dropped))
        return bits.view(np.float64).reshape(value.shape)


class NarrowWhereAllowed(NotesDrops):
    """A member, which uses the narrowest formats that no clause asks more of.

    It takes the norm of a gradient from squares in float32 or in the gradient's wider format, gives that in the
    gradient's own, and theirs in the widest of these. At O3 averages and running statistics have the model's format.
    """

    def gradient_norm(self, gradients: Mapping[str, Array]) -> float:
        if not gradients:
            return 0.0
        formats = {name: self.master_formats[name] for name in gradients}
        norms = [self._norm(g, formats[n]) for n, g in gradients.items()]
        widest = reduce(wider, formats.values())
        return float(self.rounding.round(np.asarray(self._norm(np.asarray(norms), "float32")), widest, len(norms)))

    def _norm(self, values: Array, name: str) -> float:
        squares = self.rounding.round(np.asarray(np.vdot(values, values)), wider(name, "float32"))
        return float(self.rounding.round(np.sqrt(squares), name, max(1, values.size)))

    def average_format(self, name: str) -> str:
        return self.master_formats[name] if self.recipe.precision.level == "O3" else super().average_format(name)

    def update_running_statistics(self, path: str, mean: Array, variance: Array, count: int, momentum: float) -> None:
        super().update_running_statistics(path, mean, variance, count, momentum)
        if self.recipe.precision.level == "O3":
            for name in (f"{path}.mean", f"{path}.variance"):
                self.statistics[name] = self.rounding.round(self.statistics[name], self.recipe.precision.format)


class Ensemble:
    """The oracle's play of a case: to nearest, and, where asked for, with random roundings."""

    def __init__(self, conventions: Conventions, case: DrawnCase, left_out: frozenset[int], seed: int) -> None:
        self.conventions, self._case, self._left_out, self._seed = conventions, case, left_out, seed

    @cached_property
    def nearest(self) -> Play:
        """The play that rounds to nearest."""
        return self._play(None)

    @cached_property
    def members(self) -> tuple[Play, ...]:
        """The plays with random roundings; every second one rounds equal values apart."""
        roundings = (
            (RoundedEverywhere, RoundedApart)[i % 2](np.random.default_rng([self._seed, 24, i])) for i in range(MEMBERS)
        )
        return tuple(self._play(rounding) for rounding in roundings)

    @cached_property
    def unrounded(self) -> Play:
        """The play that rounds nothing."""
        return self._play(Exact())

    @property
    def level(self) -> str:
        """The recipe's level of precision."""
        return self._case.recipe.precision.level

    def skipped(self, place: int) -> bool:
        """Whether the verb at a place is an update that the oracle skips."""
        observation = self.nearest.observations[place]
        return observation is not None and bool(observation.get("result/skipped", False))

    def adrift(self, place: int) -> bool:
        """Whether windows of several micro-batches lack dropped ones at this verb, in a framework that ends them.

        Such a window takes in as many others, so that it is another one than the oracle's, and so are those behind it.
        """
        several = self._case.recipe.accumulation > 1 and ends_by_itself(self.conventions)
        return several and any(bool(o.get("window/dropped", 0)) for o in self._of_run(place))

    def lost(self, place: int) -> bool:
        """Whether values that are not finite have got into the run at this verb, with nothing to keep them out.

        What they spread to is a matter of arithmetic, such as 0 · inf, and the run is of no use.
        """
        return any(not np.isfinite(_wide(v)).all() for o in self._of_run(place) for n, v in o.items() if self._kept(n))

    def _kept(self, name: str) -> bool:
        """Whether what has this name stays in the run; an accumulator does not under dynamic scaling."""
        scaling = self._case.recipe.scaling
        dynamic = isinstance(scaling, DynamicScaling) and scaling.enabled
        return name.startswith(("master/", "moment/") if dynamic else ("master/", "moment/", "accumulator/"))

    def _of_run(self, place: int) -> Iterator[Observation]:
        """What can be seen of the oracle's run up to a verb, and of the runs whose weights it began with."""
        for step in range(place, -1, -1):
            observation, verb = self.nearest.observations[step], self._case.program[step]
            if observation is not None:
                yield observation
            if isinstance(verb, StartAgain) and not verb.onward:
                return

    def _play(self, rounding: Rounding | None) -> Play:
        member = isinstance(rounding, Stochastic)
        trainers, operations = (NarrowWhereAllowed, PartsAndTiles) if member else (NotesDrops, Operations)
        player = OraclePlayer(self.conventions, self._case, rounding, trainers, operations)
        play = player.play(self._left_out)
        return Play(tuple(None if o is None else canonical(o, REFERENCE_MOMENTS) for o in play.observations))


def first_difference(
    measured: Sequence[Observation | None], ensemble: Ensemble, left: Mapping[int, frozenset[str]]
) -> Unlike | None:
    """The first value that is further from the oracle's than rounding explains, by verb and then by name.

    Args:
        measured: of every verb, under canonical names; only names that the oracle has too are looked at.
        left: beginnings of names that are not judged, by the place of the verb.
    """
    for place, (mine, exact) in enumerate(zip(measured, ensemble.nearest.observations, strict=True)):
        if mine is None or exact is None:
            continue
        names = [n for n in exact if n in mine and not n.startswith(tuple(left.get(place, ())))]
        names = [n for n in names if _promised(n, exact)]
        mine, exact = _where_finite(mine, exact)
        unequal = [name for name in names if not _equal(mine[name], exact[name])]
        if unequal and ensemble.adrift(place):
            continue
        if unequal and not _decided(ensemble, place):
            return None
        if ensemble.lost(place):
            unequal = [name for name in unequal if counted(name)]
        for name in sorted(unequal, key=_order):
            if (bound := _bound(name, place, exact[name], ensemble)) is None:
                continue
            bound += _of_layers_format(name, mine[name], exact[name], ensemble)
            gap = _distance(mine[name], exact[name])
            if not gap <= bound:
                return Unlike(place, name, mine[name], exact[name], bound)
    return None


def _promised(name: str, exact: Observation) -> bool:
    """Whether a clause says what the value is.

    An average begins with the first applied update; how far what is not a number spreads through a layer is open.
    """
    if name.startswith("result/back.") and bool(np.isnan(_wide(exact[name])).any()):
        return False
    return not name.startswith("average/") or bool(exact.get("steps/steps", 0))


def _of_layers_format(name: str, mine: Array, exact: Array, ensemble: Ensemble) -> float:
    """What the rounding of a layer's output may add at O1, where layers without products choose their format."""
    if not name.startswith(("result/output.", "result/back.")) or ensemble.level != "O1":
        return 0.0
    return unit(mine) * float(np.abs(_wide(exact)).max(initial=0.0)) if unit(mine) > unit(exact) else 0.0


_BACKWARD = ("accumulator/", "result/gradient.", "result/back.")
"""What a backward pass gives: where it overflows, no clause says which gradients that reaches, nor what they become."""


def _where_finite(mine: Observation, exact: Observation) -> tuple[Observation, Observation]:
    """Two observations; where the oracle's gradients overflow, those that are not finite in one are zero in both."""
    gradients = [name for name in exact if name in mine and name.startswith(_BACKWARD)]
    if all(np.isfinite(_wide(exact[name])).all() for name in gradients):
        return mine, exact
    mine, exact = dict(mine), dict(exact)
    for name in gradients:
        if mine[name].shape == exact[name].shape:
            finite = np.isfinite(_wide(mine[name])) & np.isfinite(_wide(exact[name]))
            for each in (mine, exact):
                each[name] = np.where(finite, each[name], np.zeros_like(each[name]))
    return mine, exact


_FLOW = ("result/", "accumulator/", "moment/", "master/", "parameter/", "average/", "buffer/")


def _order(name: str) -> tuple[int, str]:
    """What is counted before what is rounded, and then as an update computes one from the other."""
    place = next((i for i, prefix in enumerate(_FLOW, 1) if name.startswith(prefix)), len(_FLOW) + 1)
    return (0 if counted(name) else place, name)


def _decided(ensemble: Ensemble, place: int) -> bool:
    """Whether every member counts what the oracle counts, up to this verb."""
    for step in range(place + 1):
        exact = ensemble.nearest.observations[step]
        if exact is None:
            continue
        for member in ensemble.members:
            other = member.observations[step]
            if other is None or other.keys() != exact.keys():
                return False
            if any(not _equal(other[n], exact[n]) for n in exact if counted(n)):
                return False
            if any(not np.array_equal(np.isfinite(_wide(other[n])), np.isfinite(_wide(exact[n]))) for n in exact):
                return False
    return True


def _bound(name: str, place: int, exact: Array, ensemble: Ensemble) -> float | None:
    """How far a value may be from the oracle's; None where it is not judged."""
    if counted(name):
        return 0.0
    spread = max(_distance(o[name], exact) for o in _others(ensemble, place))
    finite = np.abs(_wide(exact))[np.isfinite(_wide(exact))]
    largest = float(finite.max()) if finite.size else 0.0
    if spread == 0.0 or ensemble.conventions.compiled:
        spread = max(spread, _unrounded(name, place, exact, ensemble))
    if spread <= FLOAT64 * largest and exact.dtype == np.float64:
        reported = name.startswith("result/") and "." not in name
        return largest * (0.0 if _narrow(exact) else REPORTED if reported else FLOAT64)
    if spread == 0.0:
        return 0.0
    if spread > LEARNABLE * largest:
        return None
    return IMPLEMENTATION_FREEDOM * spread + unit(exact) * largest


def _unrounded(name: str, place: int, exact: Array, ensemble: Ensemble) -> float:
    """How far the play without rounding is from the oracle's, which members may agree with by chance.

    Where that play counts something else, because nothing overflows in it, it says nothing, and the value counts as
    not rounded.
    """
    for step in range(place + 1):
        nearest, unrounded = (play.observations[step] for play in (ensemble.nearest, ensemble.unrounded))
        if nearest is None or unrounded is None:
            continue
        if any(not _equal(unrounded[n], nearest[n]) for n in nearest if counted(n)):
            return 0.0
    observation = ensemble.unrounded.observations[place]
    return 0.0 if observation is None else _distance(observation[name], exact)


def _others(ensemble: Ensemble, place: int) -> Iterator[Observation]:
    for member in ensemble.members:
        observation = member.observations[place]
        if observation is not None:
            yield observation


def unit(array: Array) -> float:
    """The unit in the last place of 1 in the array's format, float32's for what is not a float of a known format."""
    name = array.dtype.name if array.dtype.name in ("float16", "bfloat16", "float32") else "float32"
    return 2.0 * format_of(name).unit_roundoff


def _narrow(array: Array) -> bool:
    """Whether float16 holds the value, so that it has few bits."""
    with np.errstate(over="ignore"):
        return _equal(array.astype(np.float16), array)


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)


def _equal(a: Array, b: Array) -> bool:
    return _distance(a, b) == 0.0


def _distance(a: Array, b: Array) -> float:
    """The largest difference of an element; infinite between shapes, and between what is finite and what is not.

    What is not a number differs from no infinity, since which of the two comes out depends on the order of a sum.
    """
    if a.shape != b.shape:
        return float("inf")
    return float(_gaps(_wide(a).ravel(), _wide(b).ravel()).max(initial=0.0))


def _gaps(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore"):
        gap = np.abs(left - right)
    finite = np.isfinite(left) | np.isfinite(right)
    same = (left == right) | ((np.isnan(left) | np.isnan(right)) & ~finite)
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def apart_from_twin(
    measured: Play,
    twin: Play,
    ensembles: tuple[Ensemble, ...] = (),
    left: tuple[str, ...] = (),
    underflow: float = 0.0,
) -> Unlike | None:
    """The first value in which two plays of a framework differ, verb by verb.

    Args:
        ensembles: of the programs, where two of them may round otherwise: each play and its oracle may be as far from
            the exact value as the bound says; empty where the plays have to be the same to the bit.
        left: beginnings of names that are not compared.
        underflow: values smaller than this are equal.
    """
    for place, (mine, other) in enumerate(zip(measured.observations, twin.observations, strict=True)):
        if mine is None or other is None:
            continue
        if not _alike(place, ensembles):
            return None
        names = [name for name in other if name in mine and not name.startswith(left)]
        for name in sorted((n for n in names if not _same(mine[n], other[n], underflow)), key=_order):
            bounds = [_bound_of_one(name, place, ensemble) for ensemble in ensembles]
            if None in bounds or (ensembles and not np.isfinite(_wide(other[name])).all()):
                continue
            bound = 2.0 * sum(bound for bound in bounds if bound is not None)
            if not ensembles or not _distance(mine[name], other[name]) <= bound:
                return Unlike(place, name, mine[name], other[name], bound)
    return None


def _same(a: Array, b: Array, underflow: float) -> bool:
    """Whether two values have the same bits, but for what is smaller than `underflow`."""
    if same_bits(a, b) or not underflow or a.shape != b.shape or a.dtype != b.dtype:
        return same_bits(a, b)
    small = np.maximum(np.abs(_wide(a)), np.abs(_wide(b))) < underflow
    return same_bits(np.where(small, np.zeros_like(a), a), np.where(small, np.zeros_like(b), b))


def _alike(place: int, ensembles: tuple[Ensemble, ...]) -> bool:
    """Whether the oracle counts the same in all programs behind a verb, and the same is finite."""
    observations = [o for o in (ensemble.nearest.observations[place] for ensemble in ensembles) if o is not None]
    pairs = [(name, o[name], observations[0][name]) for o in observations[1:] for name in o]
    return all(
        _equal(a, b) if counted(name) else a.shape != b.shape or not _distance(0.0 * _wide(a), 0.0 * _wide(b))
        for name, a, b in pairs
    )


def _bound_of_one(name: str, place: int, ensemble: Ensemble) -> float | None:
    exact = ensemble.nearest.observations[place]
    if exact is None or name not in exact or not _decided(ensemble, place):
        return None
    return _bound(name, place, exact[name], ensemble)
