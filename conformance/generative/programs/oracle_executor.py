"""Plays a case on the reference."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np

from conformance.generative.programs.case import DamageOffloaded, GeneratedCase, OpenScope, Restore, RestoreDamaged
from conformance.generative.programs.executor import Executor, NotPlayed
from conformance.generative.programs.rounding_freedom import NotesDrops, NotesKinks, OtherRange
from conformance.search.arrays import Observation
from fixtures.arrays import Array
from frameworks.contract import Conventions, Trainer
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.rounding import Rounding


class OracleExecutor(Executor):
    """Plays a case on the reference, which follows a framework's conventions; a moment is kept as a copy."""

    def __init__(
        self,
        conventions: Conventions,
        case: GeneratedCase,
        rounding: Rounding | None,
        trainers: type[NotesDrops] = NotesDrops,
        operations: type[Operations] = Operations,
    ) -> None:
        self._framework = ReferenceFramework("cpu", conventions=conventions, rounding=rounding)
        self._framework.trainer_class, self._framework.operations_class = trainers, operations
        self._copies: dict[int, Trainer] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        return self._framework.trainer(self.case.drawn.model, self.case.recipe, weights)

    def state(self) -> Observation:
        dropped = self.trainer.dropped if isinstance(self.trainer, NotesDrops) else 0
        ops = self.trainer.ops if isinstance(self.trainer, NotesDrops) else None
        overflowed = ops is not None and isinstance(ops.rounding, OtherRange) and ops.rounding.overflowed
        notes = {"dropped": dropped, "overflowed": overflowed, "kinked": isinstance(ops, NotesKinks) and ops.kinked}
        return self.trainer.state() | {f"window/{name}": np.array(value) for name, value in notes.items()}

    def lend(self, arrays: Iterable[Array]) -> None:
        """Does nothing: the oracle keeps no array of the caller."""

    def take_back(self) -> None:
        """Does nothing, as for `lend`."""

    def save(self, slot: int) -> None:
        self._copies[slot] = copy.deepcopy(self.trainer)

    def restore(self, verb: Restore) -> None:
        if verb.slot not in self._copies:
            raise NotPlayed
        self.trainer = copy.deepcopy(self._copies[verb.slot])

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._copies:
            raise NotPlayed
        return True

    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        return True

    def scope(self, verb: OpenScope) -> None:
        """Does nothing: no process-wide scope affects a run."""
