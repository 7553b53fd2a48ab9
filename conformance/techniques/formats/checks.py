"""Checks of integer codes against the rule that the framework declares."""

from __future__ import annotations

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.oracle.bound import Bound
from conformance.techniques.formats import expected_codes
from fixtures.arrays import Array
from frameworks.contract import Quantized, QuantRule


def example(where: Array, values: Array, measured: Array, expected: Array) -> str:
    """The first element that differs, as `got X, want Y for VALUE (N of M elements differ)`; "all" if none differs."""
    if not where.any():
        return "all"
    place = tuple(int(index[0]) for index in np.nonzero(where))
    value, got, wanted = (float(each[place]) for each in (values, measured, expected))
    return f"got {got!r}, want {wanted!r} for {value!r} ({int(where.sum())} of {where.size} elements differ)"


def broadcast(quantized: Quantized) -> tuple[Array, Array]:
    """Scale and zero point of each value, float64."""
    scale, zero = (np.asarray(each, np.float64) for each in (quantized.scale, quantized.zero_point))
    return np.broadcast_to(scale, quantized.codes.shape), np.broadcast_to(zero, quantized.codes.shape)


def check_scale(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str) -> None:
    """Each scale is the rule's for the range."""
    scale, _ = broadcast(quantized)
    wanted = expected_codes.scale_of(values, rule)
    derivation = {"method": "four roundings of float32", "u": expected_codes.U}
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = float(np.where(scale == wanted, 0.0, np.abs(scale - wanted) / wanted).max())
    verdict.within(apart, Bound(4 * expected_codes.U, derivation), f"scale{what}", "scale")


def check_zero_point(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule) -> None:
    """Each zero point is an integer between the lowest and highest code, and the nearest one to the range's start."""
    scale, zero = broadcast(quantized)
    verdict.holds(bool((zero == np.rint(zero)).all()), "zero points are integers", signature="zero-point")
    inside = bool((zero >= rule.low).all() and (zero <= rule.high).all())
    verdict.holds(inside, "zero points are between the lowest and highest code", signature="zero-point")
    gap = expected_codes.zero_point_gap(values, scale, zero, rule)
    half = Bound(0.5 * (1 + expected_codes.NEAR_A_TIE), {"method": "half a code, from low - min / scale"})
    verdict.within(gap, half, "zero point", "zero-point")


def check_codes(verdict: Verdict, values: Array, quantized: Quantized, rule: QuantRule, what: str = "") -> None:
    """Each code is the rule's for the reported scale, and dequantizes to its product with the scale."""
    scale, zero = broadcast(quantized)
    wrong = expected_codes.wrong_codes(values, quantized.codes, scale, zero, rule)
    verdict.equal(wrong, 0, f"codes{what} that are not the rule's", "codes")
    restored = (quantized.codes - zero) * scale
    gap = np.abs(quantized.values - restored)
    gap = np.divide(gap, np.maximum(np.abs(restored), scale), out=gap, where=gap != 0.0)
    derivation = {"method": "two roundings of float32", "u": expected_codes.U}
    verdict.within(
        float(gap.max()), Bound(2 * expected_codes.U, derivation), f"(code - zero point) * scale{what}", "restored"
    )


def comes_back(verdict: Verdict, values: Array, quantized: Quantized, what: str) -> None:
    """Dequantized values are finite and within the bound, and zeros stay zero."""
    scale, _ = broadcast(quantized)
    verdict.finite({"scale": scale, "values": quantized.values}, what)
    excess = expected_codes.round_trip_excess(values, quantized.values, scale)
    derivation = {"method": "s/2 * (1 + 4u * (|x|/s + 1)), in units of itself", "u": expected_codes.U}
    verdict.within(excess, Bound(1.0, derivation), f"error of {what}", "round-trip")
    moved = int(np.count_nonzero(quantized.values[values == 0.0]))
    verdict.equal(moved, 0, f"zeros of {what} that moved", "zero-moved")
