"""The oracle's plays of a case: rounded to nearest, rounded at random, and unrounded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from conformance.generative.programs.case import GeneratedCase, StartAgain
from conformance.generative.programs.executor import Play
from conformance.generative.programs.oracle_executor import OracleExecutor
from conformance.generative.programs.rounding_freedom import (
    Float32Updates,
    Float64Rounding,
    IndependentRounding,
    NarrowNorms,
    NarrowWhereAllowed,
    NotesDrops,
    NotesKinks,
    OverflowsEarly,
    OverflowsNever,
    PartsAndTiles,
)
from conformance.oracle.errormodel import IMPLEMENTATION_FREEDOM
from conformance.search.arrays import REFERENCE_MOMENTS, Observation, canonical, ends_by_itself, equal, wide
from fixtures.layers import BatchNorm
from fixtures.recipe import DynamicScaling
from frameworks.contract import Conventions
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.rounding import Exact, Rounding

MEMBERS = 8
LARGEST = float(np.finfo(np.float32).max)
LONG, REORDERED = 256, 2.0
"""Number of terms from which the order of a sum, which no member changes, matters more than rounding, and by how
much."""
CANCELLED = 4.0
"""Factor of the bound after a batch norm.

It cancels the gradient of what all samples have in common, such as the bias before it: what is left is rounding, whose
size depends on the order of sums.
"""


class Ensemble:
    """The oracle's play of a case: to nearest, and, where asked for, with random roundings."""

    def __init__(self, conventions: Conventions, case: GeneratedCase, left_out: frozenset[int], seed: int) -> None:
        self.conventions, self._case, self.left_out, self._seed = conventions, case, left_out, seed
        self._exact: dict[int, bool] = {}
        self._rounded: list[Play] = []

    @cached_property
    def freedom(self) -> float:
        """The bound in units of the spread."""
        cancels = any(isinstance(layer, BatchNorm) for _, layer, _ in self._case.drawn.model.shapes())
        terms = self._case.drawn.longest_sum
        return IMPLEMENTATION_FREEDOM * (CANCELLED if cancels else 1.0) * (REORDERED if terms > LONG else 1.0)

    @cached_property
    def nearest(self) -> Play:
        """The play that rounds to nearest."""
        return self._play(None)

    @property
    def members(self) -> tuple[Play, ...]:
        """The plays with random roundings, and one in the narrowest formats that rounds to nearest.

        Of the former every second one rounds equal values apart, and steps in float32. The latter is for what nearest
        rounding leaves where it is, update after update, and random rounding moves.
        """
        return (*self.rounded(MEMBERS), self._narrow)

    def fewer(self) -> Iterator[tuple[Play, ...]]:
        """Some members, more and more, and then all: what lies within the bound of some is within that of all."""
        yield from (self.rounded(count) for count in (MEMBERS // 4, MEMBERS // 2, MEMBERS))
        yield self.members

    def further(self) -> Iterator[tuple[Play, ...]]:
        """All members and more and more others: of a single value, eight may happen to lie close together."""
        for count in range(MEMBERS + MEMBERS // 2, 4 * MEMBERS + 1, MEMBERS // 2):
            yield (*self.rounded(count), self._narrow)

    def rounded(self, count: int) -> tuple[Play, ...]:
        """So many plays with random roundings, each played once."""
        for number in range(len(self._rounded), count):
            rng = np.random.default_rng([self._seed, 24, number])
            everywhere = Float64Rounding(rng), PartsAndTiles, NarrowWhereAllowed
            self._rounded.append(
                self._play(*((IndependentRounding(rng), NarrowNorms, Float32Updates) if number % 2 else everywhere))
            )
        return tuple(self._rounded[:count])

    @cached_property
    def _narrow(self) -> Play:
        return self._play(None, NarrowNorms, NarrowWhereAllowed)

    @cached_property
    def unrounded(self) -> Play:
        """The unrounded play."""
        return self._play(Exact())

    def exact(self, place: int) -> bool:
        """Whether no play has a rounded value in the observation after the verb at a place."""
        if place not in self._exact:
            nearest = self.nearest.observations[place] or {}
            others = [play.observations[place] or {} for play in (*self.members, self.unrounded)]
            pairs = ((other[name], value) for other in others for name, value in nearest.items() if name in other)
            self._exact[place] = all(equal(a, b) for a, b in pairs)
        return self._exact[place]

    def skipped(self, place: int) -> bool:
        """Whether the verb at a place is an update that the oracle skips."""
        observation = self.nearest.observations[place]
        return observation is not None and bool(observation.get("result/skipped", False))

    def kinked(self, place: int) -> bool:
        """Whether rounding decided on the slope of a rectifier in the run at this verb."""
        plays = (self.nearest, self.unrounded)
        return any(bool(o["window/kinked"]) for play in plays for o in self._of_run(place, play))

    def diverged(self, place: int) -> bool:
        """Whether a loss is finite, in the run at this verb, and more than float32 holds."""
        losses = [wide(o["result/loss"]) for o in self._of_run(place, self.unrounded) if "result/loss" in o]
        return any(bool(np.isfinite(loss) and abs(loss) > LARGEST) for loss in losses)

    def adrift(self, place: int) -> bool:
        """Whether windows of several micro-batches lack dropped ones at this verb, in a framework that ends them.

        Such a window takes in as many others, so that it is another one than the oracle's, and so are those after it.
        """
        several = self._case.recipe.accumulation > 1 and ends_by_itself(self.conventions)
        return several and any(bool(o.get("window/dropped", 0)) for o in self._of_run(place))

    def lost(self, place: int) -> bool:
        """Whether non-finite values have entered the run at this verb, with nothing to reject them.

        What they spread to is a matter of arithmetic, such as 0 · inf, and the run is of no use.
        """
        return any(
            not np.isfinite(wide(v)).all() for o in self._of_run(place) for n, v in o.items() if self._persists(n)
        )

    def _persists(self, name: str) -> bool:
        """Whether a value of this name persists in the run; under dynamic scaling an accumulator does not."""
        scaling = self._case.recipe.scaling
        dynamic = isinstance(scaling, DynamicScaling) and scaling.enabled
        return name.startswith(("master/", "moment/") if dynamic else ("master/", "moment/", "accumulator/"))

    def _of_run(self, place: int, play: Play | None = None) -> Iterator[Observation]:
        """Observations of a play's run up to a verb, and of the runs whose weights it started from."""
        for step in range(place, -1, -1):
            observation, verb = (play or self.nearest).observations[step], self._case.program[step]
            if observation is not None:
                yield observation
            if isinstance(verb, StartAgain) and not verb.onward:
                return

    @cached_property
    def of_other_ranges(self) -> tuple[Play, ...]:
        """The plays that round to nearest, in a model that overflows early, and in one that notes it and never does."""
        return tuple(self._play(None, operations) for operations in (OverflowsEarly, OverflowsNever))

    def _play(
        self,
        rounding: Rounding | None,
        operations: type[Operations] = NotesKinks,
        trainers: type[NotesDrops] = NotesDrops,
    ) -> Play:
        executor = OracleExecutor(self.conventions, self._case, rounding, trainers, operations)
        play = executor.play(self.left_out)
        return Play(tuple(None if o is None else canonical(o, REFERENCE_MOMENTS) for o in play.observations))
