"""The law of operations: what may not change a result's format, and what a framework may refuse."""

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


POINTWISE = ScopedOperation("conv2d", (9, 4), "float32", (), False, (SCOPE,), 0)
FAR = ScopedOperation("softmax", (5, 7), "float32", (), False, (SCOPE,), 0, offset=-200.0)
MADE = ScopedOperation("matmul", (4, 4), "float32", (), False, (SCOPE,), 0, left=(NestedScope("float16"),))
PREPARED = replace(MADE, prepared=True)


class LeavesEmptyOperandsOut(Operations):
    """What is concatenated with an empty operand stays as it is."""

    def apply(self, op: str, function: Any, *operands: Tensor, keep: str = "") -> Tensor:
        filled = [x for x in operands if np.prod(x.shape)]
        if op == "concatenate" and len(filled) == 1:
            return filled[0]
        return super().apply(op, function, *operands, keep=keep)


class ListsAreWide(ReferenceFramework):
    """A scope that names any operation has all of them in float32."""

    def autocast(self, precision: Any, *, enabled: bool = True, wide: Any = (), low: Any = ()) -> Any:
        return super().autocast(precision, enabled=enabled, wide=("matmul",) if wide else (), low=low)


@pytest.mark.parametrize(("times", "to"), [(1, "disk"), (260, "host")])
def test_few_files_of_many_updates_offloads_to_the_host(times: int, to: str) -> None:
    model = GeneratedModel((Dense(3), Heads((Head("a", 2),))), (5,), (("a", "squared_error"),))
    program = (StartAgain(), Train((GeneratedBatch(2),), times=times))
    case = few_files(GeneratedCase(model, Recipe(offload=Offload(("optimizer",), "disk")), program))
    assert case.recipe.offload == Offload(("optimizer",), to)  # type: ignore[arg-type]


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


def with_parts(**parts: type) -> type[ReferenceFramework]:
    """The reference with parts of it replaced."""
    return type("Broken", (ReferenceFramework,), parts)


@pytest.mark.parametrize(
    ("framework", "instance", "without", "name", "text"),
    [
        (with_parts(operations_class=LeavesEmptyOperandsOut), JOINED, None, "order", "with an empty second operand"),
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
    assert failure(instance, ReferenceFramework("cpu")) is None
    failed = failure(instance, framework("cpu"))
    assert failed.name == name
    assert text in failed.text
    assert without is None or failure(without, framework("cpu")) is None


class RefusesOneOrder(ReferenceFramework):
    """Refuses a concatenation whose first operand is the wider one."""

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        if op == "concatenate" and arrays[0].dtype == np.float32:
            raise RuntimeError("unexpected format")
        return super().run_op(op, *arrays)


def test_scoped_operation_that_is_refused_in_one_order_holds() -> None:
    assert failure(replace(JOINED, empty=False), RefusesOneOrder("cpu")) is None


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_arrays_of_any_layout_have_the_same_values(layout: Layout) -> None:
    lying = replace(NAMED, layout=layout)
    assert all((a == b).all() for a, b in zip(lying.arrays(), NAMED.arrays(), strict=True))
    assert failure(lying, ReferenceFramework("cpu")) is None
