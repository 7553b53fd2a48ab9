"""Checks of a product with delayed scaling: the amax history after each step, and the step's results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.techniques.formats.expected_products import (
    SCALE,
    WITHIN,
    as_codes_have_it,
    furthest,
    product_and_bound,
    stored_scales,
)
from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import DelayedProduct, DelayedRule, Operand, PassResult

OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")


def formats_of(rule: DelayedRule) -> dict[Operand, NarrowFormat]:
    """The format that each operand is cast to."""
    operands = NARROW[rule.operands]
    return {"input": operands, "kernel": operands, "gradient": NARROW[rule.gradients]}


def amax_state(product: DelayedProduct) -> dict[str, Array]:
    """The amax history and scales, bit for bit."""
    history = product.amax_histories()
    scales = {f"{operand} scale": np.array(history[operand].scale) for operand in OPERANDS}
    return scales | {f"{operand} maxima": np.sort(history[operand].amax) for operand in OPERANDS}


class ExpectedScales:
    """Amax history and scales that a product must have after the steps recorded so far."""

    def __init__(self, rule: DelayedRule, history: int) -> None:
        self._rule, self._history, self._formats = rule, history, formats_of(rule)
        self._maxima: dict[Operand, list[float]] = {operand: [] for operand in OPERANDS}

    def record(self, inputs: Sequence[Array], kernel: Array, gradients: Sequence[Array]) -> None:
        """Records a training step, given the inputs and gradients of its micro-batches."""
        for operand, values in zip(OPERANDS, (inputs, [kernel], gradients), strict=True):
            self._maxima[operand].append(float(np.max([np.max(np.abs(each)) for each in values])))

    def check_history(self, verdict: Verdict, product: DelayedProduct) -> None:
        """Checks the amax history and the scale of each operand after the last step."""
        observed = product.amax_histories()
        for operand in OPERANDS:
            history, maxima = observed[operand], self._maxima[operand]
            what = f"of the {operand} after step {len(maxima) - 1}"
            expected = np.zeros(self._history, np.float32)
            last = maxima[-self._history :]
            expected[: len(last)] = last
            verdict.equal(np.sort(history.amax), np.sort(expected), f"amax history {what}", "history")
            apart = abs(history.scale / self._stored(operand)[-1] - 1.0)
            verdict.within(apart, SCALE, f"scale {what}, relative", "scale")

    def check_results(
        self, verdict: Verdict, passed: PassResult, inputs: Array, kernel: Array, gradient: Array
    ) -> None:
        """Checks output and gradients of the last step, which has one micro-batch."""
        step = len(self._maxima["input"]) - 1
        given, weights, back = (
            as_codes_have_it(values, self._used(operand), self._formats[operand])
            for operand, values in zip(OPERANDS, (inputs, kernel, gradient), strict=True)
        )
        for name, measured, left, right in (
            ("output", passed.output, given, weights),
            ("gradient of the input", passed.input_gradient, back, weights.T),
            ("gradient of the kernel", passed.kernel_gradient, given.T, back),
        ):
            far = furthest(measured, *product_and_bound(left, right))
            verdict.within(far, WITHIN, f"{name} of step {step}", "value")

    def _stored(self, operand: Operand) -> list[float]:
        return stored_scales(self._maxima[operand], self._formats[operand], self._history)

    def _used(self, operand: Operand) -> float:
        """The scale of the last step's casts."""
        return ([1.0] * (self._rule.lag - 1) + self._stored(operand))[-self._rule.lag]
