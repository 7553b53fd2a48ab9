"""The laws of runs that go on elsewhere: by other ranks, offloaded otherwise, from files that are damaged or shared."""

from __future__ import annotations

import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.generative.programs.case import (
    Accumulate,
    ApplyGradients,
    DamageOffloaded,
    GeneratedCase,
    Restore,
    RestoreOverrides,
    Save,
    SpikedGradient,
    StartAgain,
    Target,
    Train,
)
from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from conformance.generative.programs.judge import against_the_oracle
from conformance.generative.programs.strategies import few_files
from conformance.generative.programs.triage import triaged
from conformance.generative.programs.variations import ResumedCase, SecondRun
from conformance.search.adapter_settings import generative_settings
from fixtures.arrays import Array
from fixtures.layers import Dense, Dropout, Head, Heads
from fixtures.recipe import SGD, Offload, Ranks, Recipe
from frameworks.reference import ReferenceFramework
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.offload import ArrayStore, DiskStore
from frameworks.reference.training.trainer import ReferenceTrainer

MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
WINDOW = (GeneratedBatch(4), GeneratedBatch(4, seed=1))
MOMENTUM = Recipe(SGD(2.0**-4, 0.5), accumulation=2)
DISK = Offload(("parameters", "optimizer"), "disk")
PAIR = Ranks(2, "optimizer")
TRAIN = Train(WINDOW)


def broken(trainer: type[ReferenceTrainer] = ReferenceTrainer, **parts: type) -> Subject:
    """The reference with other parts."""
    framework = type("Broken", (ReferenceFramework,), {"trainer_class": trainer, **parts})
    return Subject(framework("cpu"))


def clause(subject: Subject, recipe: Recipe, *verbs: Any) -> str | None:
    """The clause that a program breaks, None if it breaks none."""
    case, laws = GeneratedCase(MODEL, recipe, (StartAgain(), *verbs)), generative_settings(subject.framework)
    failure = against_the_oracle(subject, laws, case)
    if failure is None:
        return None
    return triaged(case, failure, lambda other: against_the_oracle(subject, laws, other)).clause


FOUR = Restore(under=RestoreOverrides(Ranks(4, "optimizer")))
HERE = Restore(under=RestoreOverrides(PAIR))
AWAY = Restore(under=RestoreOverrides(offload=DISK))


@pytest.mark.parametrize(
    ("recipe", "verbs"),
    [
        (MOMENTUM.replace(ranks=PAIR), (TRAIN, Save(), FOUR, Accumulate(WINDOW[0], 4), TRAIN)),
        (MOMENTUM.replace(ranks=PAIR), (TRAIN, Save(), FOUR, TRAIN, Save(), Restore(), TRAIN)),
        (MOMENTUM.replace(ranks=PAIR, offload=DISK), (TRAIN, Save(), HERE, TRAIN, Save(), Restore(into="used"), TRAIN)),
        (MOMENTUM, (TRAIN, Save(), AWAY, TRAIN, DamageOffloaded(0.5, 0.5), TRAIN)),
        (MOMENTUM.replace(offload=DISK), (TRAIN, DamageOffloaded(), DamageOffloaded(0.99, 0.99), TRAIN)),
    ],
    ids=["mid-window", "there-and-back", "no-files", "files", "damage"],
)
def test_the_reference_goes_on_anywhere(recipe: Recipe, verbs: tuple[Any, ...]) -> None:
    assert clause(broken(), recipe, *verbs) is None


class _DropsMomentsOfOthers(ReferenceRankGroup):
    """What another number of ranks saved comes without moments."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count == 4:
            for trainer in self.trainers:
                for moments in trainer.slots.values():
                    moments.update({name: np.zeros_like(value) for name, value in moments.items()})


def test_what_other_ranks_load_is_what_was_saved() -> None:
    subject = broken(rank_group_class=_DropsMomentsOfOthers)
    assert (
        clause(subject, MOMENTUM.replace(ranks=PAIR), TRAIN, Save(), FOUR, TRAIN) == "sharding.resumes-in-another-size"
    )
    assert clause(subject, MOMENTUM.replace(ranks=PAIR), TRAIN, Save(), Restore(), TRAIN) is None


class _FirstRankAloneLoadsTheAverage(ReferenceRankGroup):
    """After a load, every rank but the first begins the average anew."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[1:]:
            trainer.averages = {name: master.copy() for name, master in trainer.masters.items()}


@pytest.mark.parametrize("into", ["same", "fresh", "used", "predicted"])
def test_a_save_of_other_ranks_is_resumed_by_as_many(into: Target) -> None:
    model = replace(MODEL, layers=(Dropout(0.5), *MODEL.layers))
    moved = Restore(0, under=RestoreOverrides(Ranks(4, "optimizer")))
    case = GeneratedCase(model, MOMENTUM.replace(ranks=PAIR), (StartAgain(), Save(), moved, TRAIN))
    assert ResumedCase(case, 3, into).failure(broken(), generative_settings(broken().framework)) is None


def test_a_load_that_is_not_played_leaves_the_other_ranks_on() -> None:
    """An open window is loaded by as many ranks alone; the first rank's part of one depends on how many there are."""
    moved = Restore(0, under=RestoreOverrides(Ranks(1)))
    window = (Accumulate(GeneratedBatch(2), 4), Save(), Restore(), Accumulate(GeneratedBatch(2, seed=5), 4))
    assert clause(broken(), MOMENTUM.replace(ranks=Ranks(2)), Save(), moved, TRAIN, *window) is None


def test_every_rank_is_looked_at() -> None:
    recipe = MOMENTUM.replace(ranks=Ranks(2), average=0.5)
    subject = broken(rank_group_class=_FirstRankAloneLoadsTheAverage)
    assert clause(subject, recipe, TRAIN, TRAIN, Save(), Restore()) == "sharding.replicas-equal"
    assert clause(broken(), recipe, TRAIN, TRAIN, Save(), Restore(), TRAIN) is None


class _LoadsIntoMemory(ReferenceTrainer):
    """A run that offloads takes no moments from a save."""

    def load_state(self, state: Any) -> None:
        super().load_state(state)
        if self.recipe.offload is not None:
            for moments in self.slots.values():
                for name in list(moments):
                    moments[name] = np.zeros_like(moments[name])


def test_a_load_into_an_offloaded_run_is_complete() -> None:
    assert clause(broken(_LoadsIntoMemory), MOMENTUM, TRAIN, Save(), AWAY, TRAIN) == "offload.trains"


class _Unchecked(DiskStore):
    """Files are read without a look at their checksum; one that is gone is zeros."""

    def get(self, key: str) -> Array:
        path, known = self.path(key), self.folder.parent / "known"
        try:
            value = super().get(key)
        except (OSError, ValueError):
            return np.zeros_like(np.load(known / path.name))
        known.mkdir(exist_ok=True)
        np.save(known / path.name, value)
        return value


class _Careless(ReferenceTrainer):
    """A run with such files."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Unchecked(offload.folder) if offload.to == "disk" else super().make_store(offload)


@pytest.mark.parametrize("damage", [DamageOffloaded(), DamageOffloaded(0.3, 0.9)], ids=["missing", "changed"])
def test_an_offloaded_file_that_is_read_damaged_is_seen(damage: DamageOffloaded) -> None:
    assert clause(broken(_Careless), MOMENTUM.replace(offload=DISK), TRAIN, damage) == "offload.disk-fault"


class _NeverRecovers(DiskStore):
    """A file that could not be read once is zeros from then on."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._lost: set[str] = set()

    def get(self, key: str) -> Array:
        try:
            value = super().get(key)
        except (OSError, ValueError):
            self._lost.add(key)
            raise
        return np.zeros_like(value) if key in self._lost else value


class _LosesWhatWasDamaged(ReferenceTrainer):
    """A run with such files."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _NeverRecovers(offload.folder) if offload.to == "disk" else super().make_store(offload)


def test_a_run_is_as_it_was_once_its_file_is_back() -> None:
    damage = DamageOffloaded(0.3, 0.9)
    assert clause(broken(_LosesWhatWasDamaged), MOMENTUM.replace(offload=DISK), TRAIN, damage) == "offload.disk-fault"


class _OneFolder(DiskStore):
    """Every run below a folder has the same one there."""

    def __init__(self, folder: str | None) -> None:
        assert folder is not None
        self.folder = Path(folder) / "swap"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class _SharesFiles(ReferenceTrainer):
    """A run with such a folder."""

    def make_store(self, offload: Offload) -> ArrayStore:
        return _OneFolder(offload.folder) if offload.to == "disk" else super().make_store(offload)


def test_runs_that_share_a_folder_have_files_of_their_own() -> None:
    case = GeneratedCase(MODEL, MOMENTUM.replace(offload=DISK), (StartAgain(), TRAIN, DamageOffloaded(), TRAIN))
    other = replace(case, program=(StartAgain(), TRAIN, TRAIN, TRAIN), drawn=replace(MODEL, seed=5))
    pair, laws = SecondRun(case, other, in_turn=True), generative_settings(broken().framework)
    assert pair.failure(broken(), laws) is None
    assert pair.failure(broken(_SharesFiles), laws) is not None


def test_a_loaded_run_of_many_updates_is_not_offloaded_to_files() -> None:
    often = ApplyGradients((SpikedGradient(1.0),), times=300)
    case = few_files(GeneratedCase(MODEL, Recipe(), (StartAgain(), Save(), AWAY, often)))
    restore = case.program[2]
    assert isinstance(restore, Restore)
    assert restore.under == RestoreOverrides(offload=replace(DISK, to="host"))
