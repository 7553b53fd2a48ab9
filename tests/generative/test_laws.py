"""The laws of masks and of operations in precision scopes: faults fail them, and the reference passes."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.generative.masks import OPTIMIZER, MaskedCase, ObservedMask, RevealingModel, Shares
from conformance.generative.operations import NestedScope, ScopedOperation
from conformance.generative.programs.case import GeneratedBatch, GeneratedModel, Gradients, StartAgain, Train, Verb
from conformance.search.properties import Layout, generative_settings
from fixtures.arrays import Array
from fixtures.model import Dense, Dropout, Embedding, Flatten, Head, Heads
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tape import Tensor
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults.reference import autocast
from tools.faults.reference.accumulation import OneMaskForTheWholeWindow

WIDE = RevealingModel((Dense(47), Dropout(0.5), Heads((Head("a", 2),))), (32,), (("a", "squared_error"),))
PASSES = (StartAgain(), Train((GeneratedBatch(4),)), Gradients((GeneratedBatch(4, 4),)))
SKIPPED = (StartAgain(), Train((GeneratedBatch(4, spoilt=math.inf),)), Gradients((GeneratedBatch(4),)))
TWICE_DRAWN = (StartAgain(), Gradients((GeneratedBatch(4),), times=2))
SCOPE = NestedScope("bfloat16")
JOINED = ScopedOperation("concatenate", (4, 4), "bfloat16", (), False, (SCOPE,), 0, second="float32", empty=True)
NAMED = ScopedOperation("matmul", (4, 4), "float32", (), False, (replace(SCOPE, wide=("tanh",)),), 0)
POINTWISE = ScopedOperation("conv2d", (9, 4), "float32", (), False, (SCOPE,), 0)
FAR = ScopedOperation("softmax", (5, 7), "float32", (), False, (SCOPE,), 0, offset=-200.0)
UNPREPARED = ScopedOperation("matmul", (4, 4), "float32", (), False, (SCOPE,), 0, left=(NestedScope("float16"),))
PREPARED = replace(UNPREPARED, prepared=True)


def make_subject(part: type = ReferenceTrainer) -> Subject:
    """The reference with these trainers, or another framework."""
    framework = part
    if issubclass(part, ReferenceTrainer):
        framework = type("Broken", (ReferenceFramework,), {"trainer_class": part})
    return Subject(framework("cpu"))


def mask_failure(trainer: type, program: tuple[Verb, ...], recipe: Recipe) -> Any:
    subject = make_subject(trainer)
    return MaskedCase(WIDE, recipe, program, 1).failure(subject, generative_settings(subject.framework))


class OppositeNext(ReferenceTrainer):
    """Every second mask is the complement of the previous one."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        odd = self.draws % 2
        self.draws -= odd
        mask = super().draw_mask(shape, rate)
        self.draws += odd
        return ~mask if odd else mask


class SkipRewinds(ReferenceTrainer):
    """A skipped update rewinds the random stream to the start of its window."""

    def apply(self) -> Update:
        beginning = self.draws - self.window.micro_batches
        update = super().apply()
        self.draws = beginning if update.skipped else self.draws
        return update


@pytest.mark.parametrize(
    ("trainer", "program", "recipe", "name", "text"),
    [
        (SkipRewinds, SKIPPED, Recipe(OPTIMIZER, scaling=DynamicScaling(8.0)), "stream", ""),
        (OneMaskForTheWholeWindow, TWICE_DRAWN, Recipe(OPTIMIZER), "repeated", "is the mask that layer 1 had before"),
        (OppositeNext, PASSES, Recipe(OPTIMIZER), "repeated", "is the opposite of the mask"),
    ],
)
def test_masked_case_with_broken_masks_fails(
    trainer: Any, program: tuple[Verb, ...], recipe: Recipe, name: str, text: str
) -> None:
    assert mask_failure(ReferenceTrainer, program, recipe) is None
    failed = mask_failure(trainer, program, recipe)
    assert failed.name == name
    assert text in failed.text


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
    assert shares.describe_problem() is None
    shares.add(0.5, np.ones((100, 10), bool))
    assert "deviation of the number of kept values" in str(shares.describe_problem())


def operation_failure(instance: ScopedOperation, framework: Any) -> Any:
    return instance.failure(Subject(framework), generative_settings(framework))


class LeavesEmptyOperandsOut(Operations):
    """A concatenation with a single non-empty operand returns that operand in its format."""

    def apply(self, op: str, function: Any, *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


LeavesEmptyOut = type("LeavesEmptyOut", (ReferenceFramework,), {"operations_class": LeavesEmptyOperandsOut})


class ListsAreWide(ReferenceFramework):
    """A scope with user lists runs every operation in float32."""

    def autocast(self, precision: Any, *, enabled: bool = True, wide: Any = (), low: Any = ()) -> Any:
        return super().autocast(precision, enabled=enabled, wide=("matmul",) if wide else (), low=low)


def test_longest_sum_of_a_model_leaves_rows_of_tables_out() -> None:
    heads, losses = Heads((Head("a", 2),)), (("a", "squared_error"),)
    assert GeneratedModel((Embedding(4097, 4), Flatten(), heads), (3,), losses).longest_sum == 12  # type: ignore[arg-type]
    assert GeneratedModel((Dense(300), heads), (5,), losses).longest_sum == 300  # type: ignore[arg-type]


class RestoresScopeOfCreation(ReferenceFramework):
    """The end of a scope restores the scope that was open when the object was created."""

    def autocast(self, precision: Any, **settings: Any) -> Any:
        outer, opened = scope.current(), super().autocast(precision, **settings)

        @contextmanager
        def region() -> Iterator[None]:
            with opened:
                yield
            scope.enter(outer)

        return region()


@pytest.mark.parametrize(
    ("framework", "instance", "without", "name", "text"),
    [
        (LeavesEmptyOut, JOINED, None, "order", "with an empty second operand"),
        (ListsAreWide, NAMED, None, "lists", ""),
        (RestoresScopeOfCreation, PREPARED, UNPREPARED, "format", ""),
        (autocast.PointwiseConvolutionsStayWide, POINTWISE, replace(POINTWISE, sizes=(4, 4)), "shape", ""),
        (autocast.SoftmaxMaximumStartsAtZero, FAR, replace(FAR, offset=0.0), "value", ""),
    ],
    ids=["empty", "named", "prepared", "pointwise", "far"],
)
def test_scoped_operation_with_a_fault_fails(
    framework: Any, instance: ScopedOperation, without: ScopedOperation | None, name: str, text: str
) -> None:
    """`without`: the operation without the feature that shows the fault."""
    assert operation_failure(instance, ReferenceFramework("cpu")) is None
    failed = operation_failure(instance, framework("cpu"))
    assert failed.name == name
    assert text in failed.text
    assert without is None or operation_failure(without, framework("cpu")) is None


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_scoped_operation_in_any_layout_has_the_same_values(layout: Layout) -> None:
    operation = replace(NAMED, layout=layout)
    assert all((a == b).all() for a, b in zip(operation.arrays(), NAMED.arrays(), strict=True))
    assert operation_failure(operation, ReferenceFramework("cpu")) is None
