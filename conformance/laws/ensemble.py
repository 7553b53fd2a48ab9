"""The oracle's plays of a case: to nearest, with random roundings, and without any."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from conformance.laws.distances import wide
from conformance.laws.members import (
    NarrowNorms,
    NarrowWhereAllowed,
    NotesDrops,
    OverflowsEarly,
    OverflowsNever,
    PartsAndTiles,
    RoundedApart,
    RoundedEverywhere,
    WideSteps,
)
from conformance.laws.observing import REFERENCE_MOMENTS, canonical, ends_by_itself
from conformance.laws.oracle_player import OraclePlayer
from conformance.laws.player import Observation, Play
from conformance.laws.programs import DrawnCase, StartAgain
from fixtures.recipe import DynamicScaling
from frameworks.contract import Conventions
from frameworks.reference.arithmetic import Operations
from frameworks.reference.rounding import Exact, Rounding, Stochastic

MEMBERS = 8


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
        """The plays with random roundings; every second one rounds equal values apart, and steps in float32."""
        roundings = (
            (RoundedEverywhere, RoundedApart)[i % 2](np.random.default_rng([self._seed, 24, i])) for i in range(MEMBERS)
        )
        return tuple(self._play(rounding) for rounding in roundings)

    @cached_property
    def unrounded(self) -> Play:
        """The play that rounds nothing."""
        return self._play(Exact())

    def skipped(self, place: int) -> bool:
        """Whether the verb at a place is an update that the oracle skips."""
        observation = self.nearest.observations[place]
        return observation is not None and bool(observation.get("result/skipped", False))

    def adrift(self, place: int) -> bool:
        """Whether windows of several micro-batches lack dropped ones at this verb, in a framework that ends them.

        Such a window takes in as many others, so that it is another one than the oracle's, and so are those after it.
        """
        several = self._case.recipe.accumulation > 1 and ends_by_itself(self.conventions)
        return several and any(bool(o.get("window/dropped", 0)) for o in self._of_run(place))

    def lost(self, place: int) -> bool:
        """Whether values that are not finite have got into the run at this verb, with nothing to keep them out.

        What they spread to is a matter of arithmetic, such as 0 · inf, and the run is of no use.
        """
        return any(not np.isfinite(wide(v)).all() for o in self._of_run(place) for n, v in o.items() if self._kept(n))

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

    @cached_property
    def of_other_ranges(self) -> tuple[Play, ...]:
        """The plays that round to nearest, in a model that overflows early, and in one that never does."""
        return tuple(self._play(None, operations) for operations in (OverflowsEarly, OverflowsNever))

    def _play(self, rounding: Rounding | None, operations: type[Operations] = Operations) -> Play:
        trainers: type[NotesDrops] = NotesDrops
        if isinstance(rounding, RoundedApart):
            trainers, operations = WideSteps, NarrowNorms
        elif isinstance(rounding, Stochastic):
            trainers, operations = NarrowWhereAllowed, PartsAndTiles
        player = OraclePlayer(self.conventions, self._case, rounding, trainers, operations)
        play = player.play(self._left_out)
        return Play(tuple(None if o is None else canonical(o, REFERENCE_MOMENTS) for o in play.observations))
