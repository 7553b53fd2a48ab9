"""Checks of the ranges of QAT layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.oracle.bound import Bound
from conformance.techniques.formats import expected_codes
from conformance.techniques.qat import expected_layers
from fixtures.arrays import Array
from frameworks.contract import Calibrated, CodeRange, QatRule


def ranges_of(observed: Mapping[str, Calibrated]) -> dict[str, Array]:
    """Ranges of inputs and outputs, bit for bit."""
    result: dict[str, Array] = {}
    for name, each in observed.items():
        result[f"inputs of {name}"] = np.array([each.inputs.scale, each.inputs.zero_point])
        if each.outputs is not None:
            result[f"outputs of {name}"] = np.array([each.outputs.scale, each.outputs.zero_point])
    return result


def check_following(
    verdict: Verdict, rule: QatRule, given: CodeRange, batch_ranges: Sequence[tuple[float, float]], what: str
) -> None:
    """An input range is the moving average of the batches' ranges, each given as (lowest, highest).

    Raises:
        ValueError: inputs have no codes.
    """
    if rule.linear.inputs is None:
        raise ValueError("inputs have no codes")
    scale, zero = expected_layers.codes_of(
        expected_layers.following(batch_ranges, rule.average)[-1], rule.linear.inputs
    )
    derivation = {"method": "roundings of float32, three a batch and four of the scale", "u": expected_codes.U}
    roundings = Bound((3 * len(batch_ranges) + 4) * expected_codes.U, derivation)
    verdict.within(abs(given.scale - scale) / scale, roundings, f"scale {what}", "scale")
    half = Bound(0.5 + 512 * roundings.value, {"method": "half a code, from low - min / scale"})
    verdict.within(abs(given.zero_point - zero), half, f"zero point {what}", "zero-point")
