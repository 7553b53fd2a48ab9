"""The laws of runs that go on elsewhere: by other ranks, offloaded otherwise, from files that are damaged or shared."""

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
from frameworks.reference.training.offload import DiskStore
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults.reference import sharding

MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
WINDOW = (GeneratedBatch(4), GeneratedBatch(4, seed=1))
MOMENTUM = Recipe(SGD(2.0**-4, 0.5), accumulation=2)
DISK = Offload(("parameters", "optimizer"), "disk")
PAIR = Ranks(2, "optimizer")
TRAIN = Train(WINDOW)


def broken(trainer: type[ReferenceTrainer] = ReferenceTrainer) -> Subject:
    """The reference with other trainers."""
    return Subject(type("Broken", (ReferenceFramework,), {"trainer_class": trainer})("cpu"))


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
def test_against_the_oracle_on_the_reference_moved_runs_hold(recipe: Recipe, verbs: tuple[Any, ...]) -> None:
    assert clause(broken(), recipe, *verbs) is None


class _LoadsIntoMemory(ReferenceTrainer):
    """A run that offloads takes no moments from a save."""

    def load_state(self, state: Any) -> None:
        super().load_state(state)
        if self.recipe.offload is not None:
            for moments in self.slots.values():
                moments.update({name: np.zeros_like(value) for name, value in moments.items()})


class _NeverRecovers(DiskStore):
    """A file that could not be read once is zeros from then on."""

    def get(self, key: str) -> Array:
        lost: set[str] = self.__dict__.setdefault("lost", set())
        try:
            value = super().get(key)
        except (OSError, ValueError):
            lost.add(key)
            raise
        return np.zeros_like(value) if key in lost else value


class _LosesWhatWasDamaged(sharding.InStore):
    """A run with such files."""

    disk = _NeverRecovers


RANKS = MOMENTUM.replace(ranks=PAIR)
FILES = MOMENTUM.replace(offload=DISK)
REPLICAS = MOMENTUM.replace(ranks=Ranks(2), average=0.5)


@pytest.mark.parametrize(
    ("framework", "recipe", "verbs", "name"),
    [
        (sharding.MomentumStaysWithItsRank, RANKS, (Save(), FOUR, TRAIN), "sharding.resumes-in-another-size"),
        (sharding.AverageIsNotGathered, REPLICAS, (TRAIN,), "sharding.replicas-equal"),
        (_LoadsIntoMemory, MOMENTUM, (Save(), AWAY, TRAIN), "offload.trains"),
        (sharding.MissingFilesAreZeros, FILES, (DamageOffloaded(),), "offload.disk-fault"),
        (sharding.FilesAreTrusted, FILES, (DamageOffloaded(0.3, 0.9),), "offload.disk-fault"),
        (_LosesWhatWasDamaged, FILES, (DamageOffloaded(0.3, 0.9),), "offload.disk-fault"),
    ],
)
def test_against_the_oracle_with_a_broken_move_names_its_clause(
    framework: Any, recipe: Recipe, verbs: tuple[Any, ...], name: str
) -> None:
    subject = broken(framework) if issubclass(framework, ReferenceTrainer) else Subject(framework("cpu"))
    assert clause(subject, recipe, TRAIN, *verbs) == name
    assert clause(broken(), recipe, TRAIN, *verbs) is None


@pytest.mark.parametrize("into", ["same", "fresh", "used", "predicted"])
def test_resumed_case_of_a_save_by_other_ranks_holds(into: Target) -> None:
    model = replace(MODEL, layers=(Dropout(0.5), *MODEL.layers))
    moved = Restore(0, under=RestoreOverrides(Ranks(4, "optimizer")))
    case = GeneratedCase(model, MOMENTUM.replace(ranks=PAIR), (StartAgain(), Save(), moved, TRAIN))
    assert ResumedCase(case, 3, into).failure(broken(), generative_settings(broken().framework)) is None


def test_against_the_oracle_with_a_load_that_is_not_played_keeps_the_ranks() -> None:
    """An open window is loaded by as many ranks alone; the first rank's part of one depends on how many there are."""
    moved = Restore(0, under=RestoreOverrides(Ranks(1)))
    window = (Accumulate(GeneratedBatch(2), 4), Save(), Restore(), Accumulate(GeneratedBatch(2, seed=5), 4))
    assert clause(broken(), MOMENTUM.replace(ranks=Ranks(2)), Save(), moved, TRAIN, *window) is None


class _OneFolder(DiskStore):
    """Every run below a folder has the same one there."""

    def __init__(self, folder: str | None) -> None:
        assert folder is not None
        self.folder = Path(folder) / "swap"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class _SharesFiles(sharding.InStore):
    """A run with such a folder."""

    disk = _OneFolder


def test_second_run_in_a_shared_folder_has_its_own_files() -> None:
    case = GeneratedCase(MODEL, MOMENTUM.replace(offload=DISK), (StartAgain(), TRAIN, DamageOffloaded(), TRAIN))
    other = replace(case, program=(StartAgain(), TRAIN, TRAIN, TRAIN), drawn=replace(MODEL, seed=5))
    pair, laws = SecondRun(case, other, in_turn=True), generative_settings(broken().framework)
    assert pair.failure(broken(), laws) is None
    assert pair.failure(broken(_SharesFiles), laws) is not None


def test_few_files_of_a_loaded_run_of_many_updates_offloads_to_the_host() -> None:
    often = ApplyGradients((SpikedGradient(1.0),), times=300)
    case = few_files(GeneratedCase(MODEL, Recipe(), (StartAgain(), Save(), AWAY, often)))
    restore = case.program[2]
    assert isinstance(restore, Restore)
    assert restore.under == RestoreOverrides(offload=replace(DISK, to="host"))
