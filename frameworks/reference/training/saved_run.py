"""Saves, loads and copies of a reference run's state."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from frameworks.base import BaseTrainer, of_same_class
from frameworks.contract import LoadOrder, Trainer
from frameworks.reference.core import checkpoint
from frameworks.reference.training import state_dict
from frameworks.reference.training.decisions import Arrays, Decisions


class SavedRun(Decisions, BaseTrainer):
    """A run whose state goes to files and to other runs."""

    def save(self, path: Path) -> None:
        checkpoint.write(path, self.save_state(), self._identity(), compressed=self.recipe.way("save") == "compressed")

    def restore(self, path: Path) -> None:
        self.load_state(checkpoint.read(path, self._identity(), self.save_state()))

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        state_dict.put_back_in(self, checkpoint.read(path, self._identity(), self.save_state()), order)

    def take(self, other: Trainer) -> None:
        self.load_state(of_same_class(self, other).save_state())

    def freeze(self, names: Collection[str]) -> None:
        self.frozen = frozenset(names).union(self.recipe.frozen)

    def load_part(self, part: str, arrays: Arrays) -> None:
        """Goes back to what `save_state` returned of one of `state_dict.PARTS`."""
        state_dict.put_back(self, arrays, (part,))

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(offload=None)}"

    def save_state(self) -> Arrays:
        """The full state of the run, as named arrays."""
        return state_dict.taken(self)

    def load_state(self, arrays: Arrays) -> None:
        """Goes back to what `save_state` returned."""
        state_dict.put_back(self, arrays)
