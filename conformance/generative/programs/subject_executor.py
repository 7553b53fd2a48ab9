"""Plays a case on the framework under test."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from conformance.checks.evidence import same_bits, short_text
from conformance.checks.subject import Subject
from conformance.generative.programs.case import (
    Damage,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    OpenScope,
    Restore,
    RestoreDamaged,
)
from conformance.generative.programs.executor import Executor, LoadMismatch, NotPlayed, Play, PlayFailed, RankMismatch
from conformance.search.properties import Observation, laid_out, nth
from conformance.techniques.sharding import apart
from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import Precision, Recipe
from frameworks.base import RankGroupTrainer
from frameworks.contract import Trainer

STEPS = "optimizer/steps"
MOST_UPDATES = 8
"""Updates that a used run has made at most when it loads another one; otherwise as many as that one has."""


class SubjectExecutor(Executor):
    """Plays a case on the framework under test.

    Args:
        folder: checkpoints are written below it.
        away: folder of offloaded files; runs may share it. None for one below `folder`.
    """

    def __init__(self, subject: Subject, case: GeneratedCase, folder: Path, offloaded: Path | None = None) -> None:
        self._subject, self._folder, self._offloaded = subject, folder, offloaded or folder / "away"
        self._offloaded.mkdir(exist_ok=True)
        self._saved: dict[int, Path] = {}
        self._states: dict[int, Observation] = {}
        self._recipes: dict[int, Recipe] = {}
        self._folders: dict[int, set[Path]] = {}
        self._lent: list[Array] = []
        super().__init__(case)

    def make(self, weights: dict[str, Array] | None = None) -> Trainer:
        if weights is not None:
            weights = {name: laid_out(value, nth(index)) for index, (name, value) in enumerate(weights.items(), 1)}
            self.lend(weights.values())
        recipe, offload = self.recipe, self.recipe.offload
        if offload is not None and offload.to == "disk":
            recipe = recipe.replace(offload=replace(offload, folder=str(self._offloaded)))
        before = {*self._offloaded.iterdir()}
        trainer = self._subject.trainer(self.case.drawn.model, recipe, weights)
        self._folders[id(trainer)] = {*self._offloaded.iterdir()} - before
        return trainer

    def laid_out(self, batch: Batch, seed: int) -> Batch:
        """Data that lie row by row, column by column, or at every second place."""
        layout = nth(seed)
        targets = {name: laid_out(target, layout) for name, target in batch.targets.items()}
        mask = None if batch.mask is None else laid_out(batch.mask, layout)
        return Batch(laid_out(batch.inputs, layout), targets, mask)

    def play(self, left_out: frozenset[int] = frozenset()) -> Play:
        """All verbs but those that are left out.

        Raises:
            PlayFailed: a verb raised, or changed what had been read before.
        """
        observations: list[Observation | None] = []
        sums: dict[tuple[int, str], int] = {}
        for index, observation in enumerate(self.steps(left_out)):
            for (earlier, name), checksum in sums.items():
                if _checksum((observations[earlier] or {})[name]) != checksum:
                    what = f"changed the array {name} that the caller read after step {earlier + 1}"
                    raise PlayFailed(index, self.case.program[index], what, "aliased")
            observations.append(observation)
            results = {name: value for name, value in (observation or {}).items() if name.startswith("result/")}
            sums |= {(index, name): _checksum(value) for name, value in results.items()}
        return Play(tuple(observations))

    def state(self) -> Observation:
        if isinstance(self.trainer, RankGroupTrainer) and (differs := apart(self.trainer.rank_group)):
            raise RankMismatch(f"leaves {differs}")
        return self._subject.state(self.trainer)

    def lend(self, arrays: Iterable[Array]) -> None:
        self._lent += arrays

    def take_back(self) -> None:
        """Overwrites the arrays, as a caller that reuses buffers would."""
        for array in self._lent:
            array.fill(1)
        self._lent.clear()

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
        self._saved[slot], self._states[slot], self._recipes[slot] = path, self.trainer.state(), self.recipe

    def restore(self, verb: Restore) -> None:
        slot, into = verb.slot, verb.into
        if slot not in self._saved:
            raise NotPlayed
        saved = self._states[slot]
        if into != "same":
            recipe = self._goes_on(verb)
            waiting = any(name.startswith("accumulator/") for name in saved)
            if waiting and recipe.ranks != self._recipes[slot].ranks:
                raise NotPlayed
            self.recipe = recipe
        target = self.trainer if into == "same" else self.make()
        micro = GeneratedBatch(2, seed=77)
        batch = self.batch(micro)
        match into:
            case "used" | "predicted":
                for _ in range(min(MOST_UPDATES, int(np.max(saved.get(STEPS, 1))))):
                    target.update(self.window((micro,) * self.case.recipe.accumulation))
                if into == "predicted":
                    target.predict(batch.inputs)
                    if self.case.recipe.average is not None:
                        target.predict_averaged(batch.inputs)
            case "stopped":
                target.accumulate(batch, batch.items * self.case.recipe.accumulation)
            case "skipped":
                gradients = {name: np.full_like(v, np.inf) for name, v in target.parameters().items()}
                target.apply_gradients(*[gradients] * self.case.recipe.accumulation)
        target.restore(self._saved[slot])
        self.trainer = target
        loaded = target.state()
        if self.recipe.ranks != self._recipes[slot].ranks:
            loaded = {name: value for name, value in loaded.items() if not name.startswith("random/")}
        self._loads_all(saved, loaded)

    def _goes_on(self, verb: Restore) -> Recipe:
        """The recipe of the run that is loaded into another one."""
        if verb.alike:
            return self.recipe
        return self.case.recipe if verb.under is None else verb.under.recipe(self.case.recipe)

    def _loads_all(self, saved: Observation, loaded: Observation) -> None:
        """Compares the loaded state with the saved one, including signs of zeros.

        Raises:
            Misloaded: something differs.
        """
        for name, value in saved.items():
            if name in loaded and not same_bits(loaded[name], value):
                raise LoadMismatch(f"loaded {name}: got {short_text(loaded[name])}, want {short_text(value)} as saved")

    def restore_damaged(self, verb: RestoreDamaged) -> bool:
        if verb.slot not in self._saved:
            raise NotPlayed
        path = self._folder / f"damaged-{len(list(self._folder.iterdir()))}"
        shutil.copytree(self._saved[verb.slot], path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        damage(files[int(verb.file * len(files))], verb.damage)
        if self._loses_nothing(path, self._states[verb.slot]):
            raise NotPlayed
        try:
            self.trainer.restore(path)
        except ValueError:
            return True
        return False

    def damage_offloaded(self, verb: DamageOffloaded) -> bool:
        before = self.trainer.state()
        paths = (path for folder in self._folders[id(self.trainer)] for path in folder.rglob("*"))
        files = sorted(path for path in paths if path.is_file() and path.stat().st_size)
        if not files:
            raise NotPlayed
        file = files[int(verb.file * len(files))]
        content = file.read_bytes()
        file.unlink()
        if verb.byte is not None:
            offset = int(verb.byte * len(content))
            file.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        refused = self._refuses_to_read()
        file.write_bytes(content)
        self._loads_all(before, self.trainer.state())
        return refused

    def _refuses_to_read(self) -> bool:
        """Whether reading the full state fails."""
        try:
            self.trainer.state()
        except (OSError, ValueError, RuntimeError):
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


def _checksum(value: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(value).tobytes())


def damage(path: Path, how: Damage) -> None:
    """Cuts a file in half, puts something else in its place, or takes it away."""
    match how:
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "foreign":
            path.write_bytes(b"not a checkpoint at all")
        case "missing":
            path.unlink()
