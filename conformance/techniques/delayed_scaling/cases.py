"""The law of delayed scaling: scales follow the previous steps, and predictions change nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.search.checked_case import CheckedInstance, breaking
from conformance.techniques.formats.expected_products import (
    SCALE,
    WITHIN,
    as_codes_have_it,
    furthest,
    product_and_bound,
    stored_scales,
    values_up_to,
)
from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import DelayedProduct, DelayedProducts, DelayedRule, Operand, Passed

OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")


@dataclass(frozen=True)
class DelayedStep:
    """A training step or a prediction.

    Attributes:
        powers: for each micro-batch, the powers of two by which the largest number of the format is multiplied for the
            largest input and the largest gradient; None for values that are all zero.
        predicts: whether this is a prediction of the inputs, which moves nothing.
        special: an input that is put in, infinite or NaN, in some micro-batch; None for none.
    """

    powers: tuple[tuple[int | None, int | None], ...]
    predicts: bool = False
    special: float | None = None


@dataclass(frozen=True)
class DelayedCase(CheckedInstance):
    """A product of (n, k) and (k, m) with scales that follow earlier steps, and steps of it.

    Attributes:
        sizes: n, k and m.
        history: length of the amax history.
        accumulation: micro-batches of a step.
        kernel: the power of two by which the format's largest number is multiplied for the largest of the kernel.
    """

    sizes: tuple[int, int, int]
    history: int
    accumulation: int
    kernel: int
    steps: tuple[DelayedStep, ...]
    seed: int

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        several = {"delayed=window"} if self.accumulation > 1 else set()
        special = {"delayed=infinite"} if any(step.special is not None for step in self.steps) else set()
        return frozenset({"delayed"} | several | special)

    def check(self, subject: Subject) -> None:
        """Checks the amax history after each step, and the step's results."""
        kernel = _values(self.sizes[1:], self.kernel, NARROW["float8_e4m3fn"], [self.seed, 41])
        product = subject.framework.rule(DelayedProducts)(kernel, history=self.history, accumulation=self.accumulation)
        narrow = _formats(product.rule)
        magnitudes: dict[Operand, list[float]] = {operand: [] for operand in OPERANDS}
        for place, step in enumerate(self.steps):
            window = self._window(step, place, narrow)
            with breaking("formats.delayed-scaling") as verdict:
                if step.predicts:
                    _check_prediction(verdict, product, window[0][0], place)
                    continue
                inputs, gradients = ([pair[side] for pair in window] for side in (0, 1))
                for operand, values in zip(OPERANDS, (inputs, [kernel], gradients), strict=True):
                    magnitudes[operand].append(float(np.max([np.max(np.abs(each)) for each in values])))
                passed = product.train(*window)
                stored = {
                    operand: stored_scales(magnitudes[operand], narrow[operand], self.history) for operand in OPERANDS
                }
                for operand in OPERANDS:
                    self._check_memory(verdict, product, operand, magnitudes[operand], stored[operand][-1])
                if self.accumulation == 1 and step.special is None:
                    used = {operand: _used(product.rule, scales) for operand, scales in stored.items()}
                    _check_results(verdict, passed[0], (*window[0], kernel), used, narrow)

    def _window(
        self, step: DelayedStep, place: int, narrow: dict[Operand, NarrowFormat]
    ) -> tuple[tuple[Array, Array], ...]:
        """Inputs and gradient of each micro-batch."""
        n, k, m = self.sizes
        window = []
        for micro, (largest, slope) in enumerate(step.powers):
            seed = [self.seed, 42, place, micro]
            inputs = _values((n, k), largest, narrow["input"], [*seed, 0])
            if step.special is not None and micro == (self.seed + place) % len(step.powers):
                inputs.flat[inputs.size // 2] = step.special
            window.append((inputs, _values((n, m), slope, narrow["gradient"], [*seed, 1])))
        return tuple(window)

    def _check_memory(
        self, verdict: Verdict, product: DelayedProduct, operand: Operand, magnitudes: list[float], scale: float
    ) -> None:
        """Checks the amax history and the scale."""
        history = np.zeros(self.history, np.float32)
        last = magnitudes[-self.history :]
        history[: len(last)] = last
        remembered, what = product.remembered()[operand], f"of the {operand} after {len(magnitudes)} training steps"
        verdict.equal(np.sort(remembered.maxima), np.sort(history), f"largest values {what}", "history")
        verdict.within(abs(remembered.scale / scale - 1.0), SCALE, f"scale {what}, relative", "scale")


def _used(rule: DelayedRule, stored: list[float]) -> float:
    """The scale of the last step's casts."""
    return ([1.0] * (rule.lag - 1) + stored)[-rule.lag]


def _formats(rule: DelayedRule) -> dict[Operand, NarrowFormat]:
    """The format that each operand is cast to."""
    operands = NARROW[rule.operands]
    return {"input": operands, "kernel": operands, "gradient": NARROW[rule.gradients]}


def _values(shape: tuple[int, ...], power: int | None, narrow: NarrowFormat, seed: list[int]) -> Array:
    """Values of both signs, float32, of which the largest is the format's largest times a power of two."""
    if power is None:
        return np.zeros(shape, np.float32)
    return values_up_to(shape, float(np.ldexp(narrow.largest, power)), seed)


def memory(product: DelayedProduct) -> dict[str, Array]:
    """The amax history and scales, bit for bit."""
    remembered = product.remembered()
    scales = {f"{operand} scale": np.array(remembered[operand].scale) for operand in OPERANDS}
    return scales | {f"{operand} maxima": np.sort(remembered[operand].maxima) for operand in OPERANDS}


def _check_prediction(verdict: Verdict, product: DelayedProduct, inputs: Array, place: int) -> None:
    """Two predictions are equal and leave the amax history unchanged."""
    before = memory(product)
    first, again = (product.predict(inputs) for _ in range(2))
    verdict.same_state(memory(product), before, f"amax history after prediction {place}", "moved")
    verdict.equal(again, first, f"prediction {place}, repeated", "prediction")


def _check_results(
    verdict: Verdict,
    passed: Passed,
    operands: tuple[Array, Array, Array],
    used: dict[Operand, float],
    narrow: dict[Operand, NarrowFormat],
) -> None:
    """Output and gradients of a step, given its inputs, its gradient and the kernel."""
    inputs, gradient, kernel = operands
    given = as_codes_have_it(inputs, used["input"], narrow["input"])
    weights = as_codes_have_it(kernel, used["kernel"], narrow["kernel"])
    back = as_codes_have_it(gradient, used["gradient"], narrow["gradient"])
    for name, measured, left, right in (
        ("output", passed.output, given, weights),
        ("gradient of the input", passed.input_gradient, back, weights.T),
        ("gradient of the kernel", passed.kernel_gradient, given.T, back),
    ):
        verdict.within(furthest(measured, *product_and_bound(left, right)), WITHIN, name, "value")
