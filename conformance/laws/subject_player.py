"""Plays a case on the framework under judgement."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from conformance.judging.subject import Subject
from conformance.judging.verdict import same_bits
from conformance.laws.player import NotPlayed, Observation, Player
from conformance.laws.programs import Damage, DrawnBatch, DrawnCase, OpenScope, RestoreDamaged, Target
from fixtures.arrays import Array
from fixtures.recipe import Precision
from frameworks.contract import Trainer


class SubjectPlayer(Player):
    """Plays a case on the framework under judgement; checkpoints are files below `folder`."""

    def __init__(self, subject: Subject, case: DrawnCase, folder: Path) -> None:
        self._subject, self._folder = subject, folder
        self._saved: dict[int, Path] = {}
        self._states: dict[int, Observation] = {}
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        return self._subject.trainer(self.case.drawn.model, self.case.recipe, weights)

    def state(self) -> Observation:
        return self._subject.state(self.trainer)

    def save(self, slot: int) -> None:
        path = self._folder / str(slot)
        path.mkdir(exist_ok=True)
        waiting = bool(self.trainer.accumulator())
        try:
            self.trainer.save(path)
        except (RuntimeError, ValueError):
            if waiting:
                self._saved.pop(slot, None)
                raise NotPlayed from None
            raise
        self._saved[slot], self._states[slot] = path, self.trainer.state()

    def restore(self, slot: int, into: Target) -> None:
        if slot not in self._saved:
            raise NotPlayed
        target = self.trainer if into == "same" else self.make()
        micro = DrawnBatch(2, seed=77)
        batch = micro.batch(self.case.drawn)
        match into:
            case "used":
                target.update(self.case.window((micro,) * self.case.recipe.accumulation))
            case "predicted":
                target.predict(batch.inputs)
            case "stopped":
                target.accumulate(batch, batch.items * self.case.recipe.accumulation)
            case "skipped":
                gradients = {name: np.full_like(v, np.inf) for name, v in target.parameters().items()}
                target.feed(*[gradients] * self.case.recipe.accumulation)
        target.restore(self._saved[slot])
        self.trainer = target

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._saved:
            raise NotPlayed
        path = self._folder / f"damaged-{len(list(self._folder.iterdir()))}"
        shutil.copytree(self._saved[verb.slot], path)
        files = sorted(each for each in path.rglob("*") if each.is_file())
        damage(files[int(verb.file * len(files))], verb.damage)
        if self._loses_nothing(path, self._states[verb.slot]):
            raise NotPlayed
        try:
            self.trainer.restore(path)
        except ValueError:
            return True
        return False

    def _loses_nothing(self, path: Path, saved: Observation) -> bool:
        """Whether a new run takes all that was saved from files one of which is damaged, and so was not needed."""
        target = self.make()
        try:
            target.restore(path)
        except ValueError:
            return False
        state = target.state()
        return state.keys() == saved.keys() and all(same_bits(state[name], saved[name]) for name in saved)

    def scope(self, verb: OpenScope) -> None:
        framework = self._subject.framework
        try:
            with framework.autocast(Precision("O1", verb.format), enabled=verb.enabled):
                if verb.raises:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass


def damage(path: Path, how: Damage) -> None:
    """Cuts a file in half, puts something else in its place, or takes it away."""
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "foreign":
            path.write_bytes(b"not a checkpoint at all")
        case "missing":
            path.unlink()
