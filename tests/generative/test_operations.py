"""The law of operations: what may not change a result's format, and what a framework may refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.generative.operations import NestedScope, ScopedOperation
from conformance.generative.programs.case import GeneratedCase, StartAgain, Train
from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from conformance.generative.programs.strategies import few_files
from conformance.search.adapter_settings import generative_settings
from conformance.search.layouts import Layout
from fixtures.arrays import Array
from fixtures.layers import Dense, Embedding, Flatten, Head, Heads
from fixtures.recipe import Offload, Recipe
from frameworks.contract import OpResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import Operations
from frameworks.reference.core.tensor import Tensor
from tools.faults.reference import autocast

SCOPE = NestedScope("bfloat16")
JOINED = ScopedOperation("concatenate", (4, 4), "bfloat16", (), False, (SCOPE,), 0, second="float32", empty=True)
NAMED = ScopedOperation("matmul", (4, 4), "float32", (), False, (replace(SCOPE, wide=("tanh",)),), 0)


def failure(instance: ScopedOperation, framework: Any) -> Any:
    """What the law says of one operation."""
    return instance.failure(Subject(framework), generative_settings(framework))


@pytest.mark.parametrize("instance", [JOINED, NAMED], ids=["empty", "named"])
def test_the_reference_heeds_no_empty_operand_and_no_other_name(instance: ScopedOperation) -> None:
    assert failure(instance, ReferenceFramework("cpu")) is None


class LeavesEmptyOperandsOut(Operations):
    """What is concatenated with an empty operand stays as it is."""

    def apply(self, op: str, function: Any, *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


def test_an_empty_operand_has_a_say_in_the_format() -> None:
    broken = type("Broken", (ReferenceFramework,), {"operations_class": LeavesEmptyOperandsOut})("cpu")
    failed = failure(JOINED, broken)
    assert failed is not None
    assert "with an empty second operand" in failed.text


class ListsAreWide(ReferenceFramework):
    """A scope that names any operation has all of them in float32."""

    def autocast(self, precision: Any, *, enabled: bool = True, wide: Any = (), low: Any = ()) -> Any:
        return super().autocast(precision, enabled=enabled, wide=("matmul",) if wide else (), low=low)


def test_a_scope_that_names_other_operations_leaves_the_rest_alone() -> None:
    failed = failure(NAMED, ListsAreWide("cpu"))
    assert failed is not None
    assert failed.name == "lists"


class RefusesOneOrder(ReferenceFramework):
    """Refuses a concatenation whose first operand is the wider one."""

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        if op == "concatenate" and arrays[0].dtype == np.float32:
            raise RuntimeError("unexpected format")
        return super().run_op(op, *arrays)


def test_what_is_refused_in_one_order_is_not_judged() -> None:
    assert failure(replace(JOINED, empty=False), RefusesOneOrder("cpu")) is None


@pytest.mark.parametrize(("times", "to"), [(1, "disk"), (260, "host")])
def test_a_run_of_many_updates_is_not_offloaded_to_files(times: int, to: str) -> None:
    model = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
    program = (StartAgain(), Train((GeneratedBatch(2),), times=times))
    case = few_files(GeneratedCase(model, Recipe(offload=Offload(("optimizer",), "disk")), program))
    assert case.recipe.offload == Offload(("optimizer",), to)  # type: ignore[arg-type]


def test_rows_of_a_table_are_no_terms_of_a_sum() -> None:
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


def test_scopes_may_be_made_before_any_is_opened() -> None:
    other = NestedScope("float16")
    instance = ScopedOperation("matmul", (4, 4), "float32", (), False, (SCOPE,), 0, left=(other,))
    for each in (instance, replace(instance, prepared=True)):
        assert failure(each, ReferenceFramework("cpu")) is None
    assert failure(instance, OpensWhereItIsMade("cpu")) is None
    assert failure(replace(instance, prepared=True), OpensWhereItIsMade("cpu")) is not None


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_operands_have_the_same_values_however_they_lie(layout: Layout) -> None:
    lying = replace(NAMED, layout=layout)
    assert all((a == b).all() for a, b in zip(lying.arrays(), NAMED.arrays(), strict=True))
    assert failure(lying, ReferenceFramework("cpu")) is None


POINTWISE = ScopedOperation("conv2d", (9, 4), "float32", (), False, (SCOPE,), 0)
FAR = ScopedOperation("softmax", (5, 7), "float32", (), False, (SCOPE,), 0, offset=-200.0)
NEAR = replace(FAR, offset=0.0)


@pytest.mark.parametrize("instance", [POINTWISE, FAR], ids=["pointwise", "far"])
def test_the_reference_takes_any_kernel_and_any_row(instance: ScopedOperation) -> None:
    assert failure(instance, ReferenceFramework("cpu")) is None


def test_a_kernel_of_one_by_one_is_a_product_too() -> None:
    failed = failure(POINTWISE, autocast.PointwiseConvolutionsStayWide("cpu"))
    assert failed is not None
    assert failed.name == "shape"
    assert failure(replace(POINTWISE, sizes=(4, 4)), autocast.PointwiseConvolutionsStayWide("cpu")) is None


def test_a_row_far_from_zero_is_judged() -> None:
    failed = failure(FAR, autocast.SoftmaxMaximumStartsAtZero("cpu"))
    assert failed is not None
    assert failed.name == "value"
    assert failure(NEAR, autocast.SoftmaxMaximumStartsAtZero("cpu")) is None
