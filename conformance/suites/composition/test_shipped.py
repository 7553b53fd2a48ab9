"""Every operation, layer and optimizer that a framework ships gives the same results under a technique."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.generative.verdicts import Excluded
from conformance.techniques.shipped import judge_parts
from fixtures.arrays import FORMATS, Array
from frameworks.contract import Capability

UPDATES = 4
"""Number of updates by gradients of zero, each of which may round once."""


@clause("composition.shipped-parts")
def test_shipped_operation_gradients(
    subject: Subject, verdict: Verdict, excluded: Excluded, operation_technique: str
) -> None:
    judge_parts(subject, verdict, excluded, "operations", operation_technique)


@clause("composition.shipped-parts")
def test_shipped_layer_gradients(subject: Subject, verdict: Verdict, excluded: Excluded, layer_technique: str) -> None:
    judge_parts(subject, verdict, excluded, "layers", layer_technique)


@clause("composition.control-flow")
def test_control_flow_gradients(
    subject: Subject, verdict: Verdict, excluded: Excluded, function_technique: str
) -> None:
    judge_parts(subject, verdict, excluded, "functions", function_technique)


@clause("optimizer.shipped")
def test_shipped_optimizer_updates(
    subject: Subject, verdict: Verdict, excluded: Excluded, optimizer_technique: str
) -> None:
    judge_parts(subject, verdict, excluded, "optimizers", optimizer_technique)


@clause("optimizer.shipped")
@pytest.mark.parametrize("format_name", ["float32", "float16", "bfloat16"])
def test_zero_gradients_change_no_parameter(
    subject: Subject, verdict: Verdict, excluded: Excluded, format_name: str
) -> None:
    need(subject, Capability.SHIPPED_OPTIMIZERS)
    shipped = subject.framework.get_shipped("optimizers")
    technique, judged = f"zero-{format_name}", 0
    moved: list[str] = []
    for name in shipped.names():
        if any(exclusion.leaves_out((f"optimizer={name}", f"technique={technique}")) for exclusion in excluded):
            continue
        try:
            values = shipped.values(name, technique)
        except Exception:
            if format_name == "float32":
                raise
            continue  # no kernel for this format
        judged += len(values)
        texts = {
            text for value in values.values() if value is not None and (text := _describe_move(value, format_name))
        }
        moved += [f"{name} {text}" for text in sorted(texts)]
    if not judged:
        verdict.abstain(f"no optimizer that may be judged takes {format_name} weights here")
    verdict.equal(tuple(moved), (), f"optimizers that move {format_name} weights by gradients of zero", "moved")


def _describe_move(value: Array, format_name: str) -> str:
    """Return how a weight moved by more than one rounding for each update, "" if it did not."""
    if value.dtype.name != format_name:
        return f"makes it {value.dtype.name}"
    largest = float(np.abs(value.astype(np.float64)).max())
    return "" if largest <= 2 * UPDATES * FORMATS[format_name].unit_roundoff else f"by {largest:g}"
