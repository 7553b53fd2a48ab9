"""The laws of masks, operations and moved runs: what tells two apart, and what each failure says."""

import math
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.generative.masks import OPTIMIZER, MaskedCase, ObservedMask, RevealingModel, Shares
from conformance.generative.operations import NestedScope, ScopedOperation
from conformance.generative.programs.case import (
    Accumulate,
    ApplyGradients,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    Restore,
    RestoreOverrides,
    Save,
    SpikedGradient,
    StartAgain,
    Target,
    Train,
    Verb,
)
from conformance.generative.programs.judge import against_the_oracle
from conformance.generative.programs.strategies import few_files
from conformance.generative.programs.triage import find_broken_clause
from conformance.generative.programs.variations import ResumedCase, SecondRun
from conformance.search.properties import Layout, generative_settings
from fixtures.arrays import Array
from fixtures.model import Dense, Dropout, Embedding, Flatten, Head, Heads
from fixtures.recipe import SGD, DynamicScaling, Offload, Ranks, Recipe
from frameworks.contract import OpResult, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tape import Tensor
from frameworks.reference.training.offload import DiskStore
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import InStore
from tools.faults.reference import autocast, sharding
from tools.faults.reference.accumulation import OneMaskForTheWholeWindow

WIDE = RevealingModel((Dense(47), Dropout(0.5), Heads((Head("a", 2),))), (32,), (("a", "squared_error"),))
PASSES = (StartAgain(), Train((GeneratedBatch(4),)), Gradients((GeneratedBatch(4, 4),)))


def make_subject(part: type = ReferenceTrainer) -> Subject:
    """The reference with these trainers, or a framework of its own."""
    trains = issubclass(part, ReferenceTrainer)
    return Subject((type("Broken", (ReferenceFramework,), {"trainer_class": part}) if trains else part)("cpu"))


def mask_failure(
    part: type,
    model: RevealingModel = WIDE,
    program: tuple[Verb, ...] = PASSES,
    stride: int = 1,
    recipe: Recipe = Recipe(OPTIMIZER),
) -> Any:
    subject = make_subject(part)
    return MaskedCase(model, recipe, program, stride).failure(subject, generative_settings(subject.framework))


class OppositeNext(ReferenceTrainer):
    """Every second mask keeps what the one before dropped."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        odd = self.draws % 2
        self.draws -= odd
        mask = super().draw_mask(shape, rate)
        self.draws += odd
        return ~mask if odd else mask


class SeedOf32Bits(ReferenceTrainer):
    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        self.recipe = self.recipe.replace(seed=self.recipe.seed % 2**32)
        return super().draw_mask(shape, rate)


class OtherRate(ReferenceTrainer):
    """A quarter of the values is dropped, and divided by a half."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, rate / 4.0)


class SkipRewinds(ReferenceTrainer):
    def apply(self) -> Update:
        began = self.draws - self.window.micro_batches
        update = super().apply()
        self.draws = began if update.skipped else self.draws
        return update


class StreamOf256Draws(ReferenceTrainer):
    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        self.draws %= 256
        return super().draw_mask(shape, rate)


SKIPPED = (StartAgain(), Train((GeneratedBatch(4, spoilt=math.inf),)), Gradients((GeneratedBatch(4),)))
TWICE_DRAWN = (StartAgain(), Gradients((GeneratedBatch(4),), times=2))
MANY = (StartAgain(), Gradients((GeneratedBatch(4),), times=260))


@pytest.mark.parametrize(
    ("trainer", "program", "settings", "name", "text"),
    [
        (SeedOf32Bits, PASSES * 2, {"stride": 2**32}, "repeated", ""),
        (SkipRewinds, SKIPPED, {"recipe": Recipe(OPTIMIZER, scaling=DynamicScaling(8.0))}, "stream", ""),
        (StreamOf256Draws, MANY, {}, "repeated", ""),
        (OneMaskForTheWholeWindow, TWICE_DRAWN, {}, "repeated", "is the mask that layer 1 had before"),
        (OppositeNext, PASSES, {}, "repeated", "is the opposite of the mask"),
        (OtherRate, PASSES, {}, "share", "deviation of the number of kept values"),
    ],
)
def test_masked_case_with_broken_masks_fails(
    trainer: Any, program: tuple[Verb, ...], settings: dict[str, Any], name: str, text: str
) -> None:
    assert mask_failure(ReferenceTrainer, program=program, **settings) is None
    failed = mask_failure(trainer, program=program, **settings)
    assert failed.name == name
    assert text in failed.text
    less = {"stride": 2**16, "program": PASSES * 2} if "stride" in settings else settings
    assert trainer not in (SeedOf32Bits, SkipRewinds, StreamOf256Draws) or mask_failure(trainer, **less) is None


def test_masked_case_before_a_dropout_that_keeps_nothing_holds() -> None:
    class Nothing(ReferenceTrainer):
        def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
            mask = super().draw_mask(shape, rate)
            return np.zeros_like(mask) if shape[-1] == 3 else mask

    layers = (Dense(47), Dropout(0.5), Dense(3), Dropout(0.5), Heads((Head("a", 2),)))
    model = RevealingModel(layers, (32,), (("a", "squared_error"),))
    single = (StartAgain(), Train((GeneratedBatch(1),)), Gradients((GeneratedBatch(1, 4),)))
    assert mask_failure(Nothing, model, single) is None


@pytest.mark.parametrize(("rate", "values"), [(0.5, 40), (0.25, 60), (0.75, 60), (0.1, 140)])
def test_telling_of_a_mask_needs_forty_bits_of_chance(rate: float, values: int) -> None:
    mask = ObservedMask(0, "1", rate, np.zeros((1, values), bool))
    assert mask.telling(values)
    assert not mask.telling(values - 6)


def test_shares_off_beyond_chance_only() -> None:
    shares = Shares()
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.75):
        shares.add(rate, rng.random((1000, 10)) >= rate)
    assert shares.off() is None
    shares.add(0.5, np.ones((100, 10), bool))
    assert "deviation of the number of kept values" in str(shares.off())


SCOPE = NestedScope("bfloat16")
JOINED = ScopedOperation("concatenate", (4, 4), "bfloat16", (), False, (SCOPE,), 0, second="float32", empty=True)
NAMED = ScopedOperation("matmul", (4, 4), "float32", (), False, (replace(SCOPE, wide=("tanh",)),), 0)


def operation_failure(instance: ScopedOperation, framework: Any) -> Any:
    return instance.failure(Subject(framework), generative_settings(framework))


POINTWISE = ScopedOperation("conv2d", (9, 4), "float32", (), False, (SCOPE,), 0)
FAR = ScopedOperation("softmax", (5, 7), "float32", (), False, (SCOPE,), 0, offset=-200.0)
MADE = ScopedOperation("matmul", (4, 4), "float32", (), False, (SCOPE,), 0, left=(NestedScope("float16"),))
PREPARED = replace(MADE, prepared=True)


class LeavesEmptyOperandsOut(Operations):
    def apply(self, op: str, function: Any, *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


LeavesEmptyOut = type("LeavesEmptyOut", (ReferenceFramework,), {"operations_class": LeavesEmptyOperandsOut})


class ListsAreWide(ReferenceFramework):
    """A scope that names any operation has all of them in float32."""

    def autocast(self, precision: Any, *, enabled: bool = True, wide: Any = (), low: Any = ()) -> Any:
        return super().autocast(precision, enabled=enabled, wide=("matmul",) if wide else (), low=low)


@pytest.mark.parametrize(("times", "to"), [(1, "disk"), (260, "host")])
def test_few_files_of_many_updates_offloads_to_the_host(times: int, to: str) -> None:
    program = (StartAgain(), Train((GeneratedBatch(2),), times=times))
    case = few_files(GeneratedCase(MODEL, Recipe(offload=Offload(("optimizer",), "disk")), program))
    assert case.recipe.offload == Offload(("optimizer",), to)  # type: ignore[arg-type]
    often = ApplyGradients((SpikedGradient(1.0),), times=times)
    moved = few_files(GeneratedCase(MODEL, Recipe(), (StartAgain(), Save(), AWAY, often)))
    assert moved.program[2] == Restore(under=RestoreOverrides(offload=replace(DISK, to=to)))  # type: ignore[arg-type]


def test_longest_sum_of_a_model_leaves_rows_of_tables_out() -> None:
    heads, losses = Heads((Head("a", 2),)), (("a", "squared_error"),)
    assert GeneratedModel((Embedding(4097, 4), Flatten(), heads), (3,), losses).longest_sum == 12  # type: ignore[arg-type]
    assert GeneratedModel((Dense(300), heads), (5,), losses).longest_sum == 300  # type: ignore[arg-type]


class OpensWhereItIsMade(ReferenceFramework):
    """A scope puts back, when it is left, what was open when it was made."""

    def autocast(self, precision: Any, **settings: Any) -> Any:
        made_in, opened = scope.current(), super().autocast(precision, **settings)

        @contextmanager
        def region() -> Iterator[None]:
            with opened:
                yield
            scope.enter(made_in)

        return region()


@pytest.mark.parametrize(
    ("framework", "instance", "without", "name", "text"),
    [
        (LeavesEmptyOut, JOINED, None, "order", "with an empty second operand"),
        (ListsAreWide, NAMED, None, "lists", ""),
        (OpensWhereItIsMade, PREPARED, MADE, "format", ""),
        (autocast.PointwiseConvolutionsStayWide, POINTWISE, replace(POINTWISE, sizes=(4, 4)), "shape", ""),
        (autocast.SoftmaxMaximumStartsAtZero, FAR, replace(FAR, offset=0.0), "value", ""),
    ],
    ids=["empty", "named", "prepared", "pointwise", "far"],
)
def test_scoped_operation_with_a_fault_fails(
    framework: Any, instance: ScopedOperation, without: ScopedOperation | None, name: str, text: str
) -> None:
    """`without`: the operation without what shows the fault."""
    assert operation_failure(instance, ReferenceFramework("cpu")) is None
    failed = operation_failure(instance, framework("cpu"))
    assert failed.name == name
    assert text in failed.text
    assert without is None or operation_failure(without, framework("cpu")) is None


class RefusesOneOrder(ReferenceFramework):
    def run_op(self, op: str, *arrays: Array) -> OpResult:
        if op == "concatenate" and arrays[0].dtype == np.float32:
            raise RuntimeError("unexpected format")
        return super().run_op(op, *arrays)


def test_scoped_operation_that_is_refused_in_one_order_holds() -> None:
    assert operation_failure(replace(JOINED, empty=False), RefusesOneOrder("cpu")) is None


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_arrays_of_any_layout_have_the_same_values(layout: Layout) -> None:
    lying = replace(NAMED, layout=layout)
    assert all((a == b).all() for a, b in zip(lying.arrays(), NAMED.arrays(), strict=True))
    assert operation_failure(lying, ReferenceFramework("cpu")) is None


MODEL = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
WINDOW = (GeneratedBatch(4), GeneratedBatch(4, seed=1))
MOMENTUM = Recipe(SGD(2.0**-4, 0.5), accumulation=2)
DISK = Offload(("parameters", "optimizer"), "disk")
PAIR = Ranks(2, "optimizer")
TRAIN = Train(WINDOW)


def broken_clause(subject: Subject, recipe: Recipe, *verbs: Any) -> str | None:
    case, laws = GeneratedCase(MODEL, recipe, (StartAgain(), *verbs)), generative_settings(subject.framework)
    failure = against_the_oracle(subject, laws, case)
    if failure is None:
        return None
    return find_broken_clause(case, failure, lambda other: against_the_oracle(subject, laws, other)).clause


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
    assert broken_clause(make_subject(), recipe, *verbs) is None


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


class _LosesWhatWasDamaged(InStore):
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
    assert broken_clause(make_subject(framework), recipe, TRAIN, *verbs) == name
    assert broken_clause(make_subject(), recipe, TRAIN, *verbs) is None


@pytest.mark.parametrize("into", ["same", "fresh", "used", "predicted"])
def test_resumed_case_of_a_save_by_other_ranks_holds(into: Target) -> None:
    model = replace(MODEL, layers=(Dropout(0.5), *MODEL.layers))
    moved = Restore(0, under=RestoreOverrides(Ranks(4, "optimizer")))
    case = GeneratedCase(model, MOMENTUM.replace(ranks=PAIR), (StartAgain(), Save(), moved, TRAIN))
    subject = make_subject()
    assert ResumedCase(case, 3, into).failure(subject, generative_settings(subject.framework)) is None


def test_against_the_oracle_with_a_load_that_is_not_played_keeps_the_ranks() -> None:
    """An open window is loaded by as many ranks alone; the first rank's part of one depends on how many there are."""
    moved = Restore(0, under=RestoreOverrides(Ranks(1)))
    window = (Accumulate(GeneratedBatch(2), 4), Save(), Restore(), Accumulate(GeneratedBatch(2, seed=5), 4))
    assert broken_clause(make_subject(), MOMENTUM.replace(ranks=Ranks(2)), Save(), moved, TRAIN, *window) is None


class _OneFolder(DiskStore):
    """Every run below a folder has the same one there."""

    def __init__(self, folder: str | None) -> None:
        self.folder = Path(folder) / "swap"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class _SharesFiles(InStore):
    disk = _OneFolder


def test_second_run_in_a_shared_folder_has_its_own_files() -> None:
    case = GeneratedCase(MODEL, MOMENTUM.replace(offload=DISK), (StartAgain(), TRAIN, DamageOffloaded(), TRAIN))
    other = replace(case, program=(StartAgain(), TRAIN, TRAIN, TRAIN), drawn=replace(MODEL, seed=5))
    pair, laws = SecondRun(case, other, in_turn=True), generative_settings(make_subject().framework)
    assert pair.failure(make_subject(), laws) is None
    assert pair.failure(make_subject(_SharesFiles), laws) is not None
