"""Products with delayed scaling: scales follow the previous steps, and predictions change nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.search.properties import CheckedInstance, Property, breaking
from conformance.techniques.formats.checks import (
    SCALE,
    WITHIN,
    as_codes_have_it,
    furthest,
    product_and_bound,
    stored_scales,
    values_up_to,
)
from conformance.techniques.technique import Technique
from fixtures.arrays import NARROW, Array, NarrowFormat
from frameworks.contract import Capability, DelayedProduct, DelayedProducts, DelayedRule, Framework, Operand, PassResult
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.float8 import ReferenceDelayedProduct

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
            self._maxima[operand].append(float(np.max([np.max(np.abs(array)) for array in values])))

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
            apart = abs(history.scale / self._compute_stored_scales(operand)[-1] - 1.0)
            verdict.within(apart, SCALE, f"scale {what}, relative", "scale")

    def check_results(
        self, verdict: Verdict, passed: PassResult, inputs: Array, kernel: Array, gradient: Array
    ) -> None:
        """Checks output and gradients of the last step, which has one micro-batch."""
        step = len(self._maxima["input"]) - 1
        activations, weights, back = (
            as_codes_have_it(values, self._compute_cast_scale(operand), self._formats[operand])
            for operand, values in zip(OPERANDS, (inputs, kernel, gradient), strict=True)
        )
        for name, measured, left, right in (
            ("output", passed.output, activations, weights),
            ("gradient of the input", passed.input_gradient, back, weights.T),
            ("gradient of the kernel", passed.kernel_gradient, activations.T, back),
        ):
            far = furthest(measured, *product_and_bound(left, right))
            verdict.within(far, WITHIN, f"{name} of step {step}", "value")

    def _compute_stored_scales(self, operand: Operand) -> list[float]:
        return stored_scales(self._maxima[operand], self._formats[operand], self._history)

    def _compute_cast_scale(self, operand: Operand) -> float:
        """The scale of the last step's casts."""
        return ([1.0] * (self._rule.lag - 1) + self._compute_stored_scales(operand))[-self._rule.lag]


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
        expected = ExpectedScales(product.rule, self.history)
        for index, step in enumerate(self.steps):
            window = self._window(step, index, formats_of(product.rule))
            with breaking("formats.delayed-scaling") as verdict:
                if step.predicts:
                    _check_prediction(verdict, product, window[0][0], index)
                    continue
                expected.record([pair[0] for pair in window], kernel, [pair[1] for pair in window])
                passed = product.train(*window)
                expected.check_history(verdict, product)
                if self.accumulation == 1 and step.special is None:
                    inputs, gradient = window[0]
                    expected.check_results(verdict, passed[0], inputs, kernel, gradient)

    def _window(
        self, step: DelayedStep, index: int, narrow: dict[Operand, NarrowFormat]
    ) -> tuple[tuple[Array, Array], ...]:
        """Inputs and gradient of each micro-batch."""
        n, k, m = self.sizes
        window = []
        for micro, (largest, slope) in enumerate(step.powers):
            seed = [self.seed, 42, index, micro]
            inputs = _values((n, k), largest, narrow["input"], [*seed, 0])
            if step.special is not None and micro == (self.seed + index) % len(step.powers):
                inputs.flat[inputs.size // 2] = step.special
            window.append((inputs, _values((n, m), slope, narrow["gradient"], [*seed, 1])))
        return tuple(window)


def _values(shape: tuple[int, ...], power: int | None, narrow: NarrowFormat, seed: list[int]) -> Array:
    """Values of both signs, float32, of which the largest is the format's largest times a power of two."""
    if power is None:
        return np.zeros(shape, np.float32)
    return values_up_to(shape, float(np.ldexp(narrow.largest, power)), seed)


def _check_prediction(verdict: Verdict, product: DelayedProduct, inputs: Array, index: int) -> None:
    """Two predictions are equal and leave the amax history unchanged."""
    before = amax_state(product)
    first, again = (product.predict(inputs) for _ in range(2))
    verdict.same_state(amax_state(product), before, f"amax history after prediction {index}", "moved")
    verdict.equal(again, first, f"prediction {index}, repeated", "prediction")


_POWERS = st.integers(-6, 6)
LONGEST = 8
"""Steps, where the history is shorter; else twice as many as are remembered."""


@st.composite
def draw_case(draw: st.DrawFn, framework: Framework) -> DelayedCase:  # noqa: ARG001
    """Histories shorter and longer than the steps, windows of one to three micro-batches."""
    side = st.sampled_from([1, 2, 3, 7, 16, 24, 33])
    history = draw(st.integers(1, 5) | st.sampled_from([16, 17, 20]))
    accumulation = draw(st.sampled_from([1, 1, 1, 2, 3]))
    count = draw(st.integers(2, max(LONGEST, 2 * history) if history > LONGEST else LONGEST))
    steps = tuple(draw(_steps(accumulation)) for _ in range(count))
    sizes = draw(side), draw(side), draw(side)
    return DelayedCase(sizes, history, accumulation, draw(st.integers(-6, 3)), steps, draw(st.integers(0, 99)))


@st.composite
def _steps(draw: st.DrawFn, accumulation: int) -> DelayedStep:
    """Mostly training steps of unlike magnitudes; now and then zeros, a value that is not finite, or a prediction."""
    kind = draw(st.sampled_from(["train"] * 6 + ["zeros", "infinite", "predict"]))
    powers = tuple((draw(_POWERS), draw(_POWERS)) for _ in range(accumulation))
    match kind:
        case "zeros":
            return DelayedStep(((None, None),) * accumulation)
        case "infinite":
            return DelayedStep(powers, special=draw(st.sampled_from([math.inf, math.nan])))
        case "predict":
            return DelayedStep(powers[:1], predicts=True)
        case _:
            return DelayedStep(powers)


DELAYED_SCALING = Technique(
    rows={"delayed-scaling": "`float8` matmul with delayed scaling"},
    clauses={"formats.delayed-scaling": "delayed-scaling"},
    properties={"laws.delayed-scales": Property(12, draw_case, 1, 1 / 8, (Capability.DELAYED_SCALING,))},
    breaks=("formats.delayed-scaling",),
    features=("delayed=window", "delayed=infinite"),
    places={ReferenceDelayedProduct: ("delayed_class", ReferenceFramework)},
)
