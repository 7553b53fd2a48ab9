"""The law of delayed scaling: scales follow the previous steps, and predictions change nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject
from conformance.search.checked_case import CheckedInstance, breaking
from conformance.techniques.delayed_scaling.checks import ExpectedScales, amax_state, formats_of
from conformance.techniques.formats.expected_products import values_up_to
from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import DelayedProduct, DelayedProducts, Operand


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
        for place, step in enumerate(self.steps):
            window = self._window(step, place, formats_of(product.rule))
            with breaking("formats.delayed-scaling") as verdict:
                if step.predicts:
                    _check_prediction(verdict, product, window[0][0], place)
                    continue
                expected.record([pair[0] for pair in window], kernel, [pair[1] for pair in window])
                passed = product.train(*window)
                expected.check_history(verdict, product)
                if self.accumulation == 1 and step.special is None:
                    inputs, gradient = window[0]
                    expected.check_results(verdict, passed[0], inputs, kernel, gradient)

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


def _values(shape: tuple[int, ...], power: int | None, narrow: NarrowFormat, seed: list[int]) -> Array:
    """Values of both signs, float32, of which the largest is the format's largest times a power of two."""
    if power is None:
        return np.zeros(shape, np.float32)
    return values_up_to(shape, float(np.ldexp(narrow.largest, power)), seed)


def _check_prediction(verdict: Verdict, product: DelayedProduct, inputs: Array, place: int) -> None:
    """Two predictions are equal and leave the amax history unchanged."""
    before = amax_state(product)
    first, again = (product.predict(inputs) for _ in range(2))
    verdict.same_state(amax_state(product), before, f"amax history after prediction {place}", "moved")
    verdict.equal(again, first, f"prediction {place}, repeated", "prediction")
