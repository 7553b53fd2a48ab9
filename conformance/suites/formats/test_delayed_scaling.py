"""Delayed scaling: 8-bit products whose scales follow the previous steps."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques.float8_training import ExpectedScales, amax_state, formats_of
from conformance.techniques.formats import values_up_to
from fixtures.arrays import NARROW, Array
from frameworks.contract import Capability, DelayedProduct, DelayedProducts

K, M, N = 24, 16, 5
HISTORY = 3
EXACT = (2.0, 1.0, 8.0, 0.5, 0.25, 0.25, 4.0)
"""Largest value of each step, in units of the format's largest number; all scales are powers of two."""
UNEVEN = (3.7, 0.91, 11.3, 0.2, 5e-3, 0.7, 0.04, 2.1)


def make_product(subject: Subject, kernel: Array, accumulation: int = 1, history: int = HISTORY) -> DelayedProduct:
    """Return a product with this kernel; end the test if the framework has no delayed scaling."""
    need(subject, Capability.DELAYED_SCALING)
    return subject.framework.rule(DelayedProducts)(kernel, history=history, accumulation=accumulation)


@clause("formats.delayed-scaling")
@pytest.mark.parametrize("bad", [None, 0.0, np.inf, np.nan], ids=["usual", "zeros", "infinite", "nan"])
def test_scale_follows_amax_history(subject: Subject, verdict: Verdict, bad: float | None) -> None:
    kernel = values_up_to((K, M), 0.37, 0)
    product = make_product(subject, kernel)
    steps = [values_up_to((N, K), peak, 1 + i) for i, peak in enumerate(UNEVEN)]
    gradients = [values_up_to((N, M), peak / 7, 50 + i) for i, peak in enumerate(reversed(UNEVEN))]
    if bad is not None:
        for arrays in (steps, gradients):
            arrays[2] = np.zeros_like(arrays[2]) if bad == 0 else arrays[2].copy()
            arrays[2][1, 3] = bad
    expected = ExpectedScales(product.rule, HISTORY)
    for inputs, gradient in zip(steps, gradients, strict=True):
        product.train((inputs, gradient))
        expected.record([inputs], kernel, [gradient])
        expected.check_history(verdict, product)


@clause("formats.delayed-scaling")
@pytest.mark.parametrize("history", [1, 33])
def test_scale_follows_history_of_any_length(subject: Subject, verdict: Verdict, history: int) -> None:
    kernel = values_up_to((K, M), 0.37, 0)
    product = make_product(subject, kernel, history=history)
    expected = ExpectedScales(product.rule, history)
    for step in range(history + 3):
        inputs = values_up_to((N, K), 3.7 * 0.9**step, 1 + step)
        gradient = values_up_to((N, M), 0.5 * 0.9**step, 99 + step)
        product.train((inputs, gradient))
        expected.record([inputs], kernel, [gradient])
        expected.check_history(verdict, product)


@clause("formats.delayed-scaling")
def test_step_casts_with_scale_of_previous_steps(subject: Subject, verdict: Verdict) -> None:
    kernel = values_up_to((K, M), 2.0 * NARROW["float8_e4m3fn"].largest, 0)
    product = make_product(subject, kernel)
    largest = {operand: narrow.largest for operand, narrow in formats_of(product.rule).items()}
    steps = [values_up_to((N, K), peak * largest["input"], 1 + i) for i, peak in enumerate(EXACT)]
    gradients = [values_up_to((N, M), peak * largest["gradient"] / 2, 50 + i) for i, peak in enumerate(reversed(EXACT))]
    expected = ExpectedScales(product.rule, HISTORY)
    for inputs, gradient in zip(steps, gradients, strict=True):
        expected.record([inputs], kernel, [gradient])
        (passed,) = product.train((inputs, gradient))
        expected.check_results(verdict, passed, inputs, kernel, gradient)


@clause("formats.delayed-scaling")
def test_prediction_does_not_change_amax_history(subject: Subject, verdict: Verdict) -> None:
    product = make_product(subject, values_up_to((K, M), 0.37, 0))
    for step in range(2):
        product.train((values_up_to((N, K), 3.0, step), values_up_to((N, M), 1.0, 9 + step)))
    before = amax_state(product)
    first = product.predict(values_up_to((N, K), 300.0, 5))
    product.predict(np.full((N, K), np.inf, np.float32))
    verdict.same_state(amax_state(product), before, "amax history after predictions", "moved")
    repeated = product.predict(values_up_to((N, K), 300.0, 5))
    verdict.holds(np.array_equal(first, repeated), "a repeated prediction", "differs", "the same", "prediction")


@clause("formats.delayed-scaling")
@pytest.mark.parametrize("places", [(0, 1), (1, 0)], ids=["largest-first", "largest-last"])
def test_window_records_one_amax(subject: Subject, verdict: Verdict, places: tuple[int, int]) -> None:
    kernel = values_up_to((K, M), 0.37, 0)
    both, alone = make_product(subject, kernel, accumulation=2), make_product(subject, kernel)
    large = (values_up_to((N, K), 10.0, 1), values_up_to((N, M), 4.0, 2))
    small = (values_up_to((N, K), 1.0, 3), values_up_to((N, M), 0.5, 4))
    for _ in range(2):
        both.train(*((large, small)[index] for index in places))
        alone.train(large)
    verdict.same_state(amax_state(both), amax_state(alone), "amax history after windows of two", "window")


@clause("formats.delayed-scaling")
@pytest.mark.parametrize("largest", [1e-30, 1e-37, 1e-41])
def test_tiny_values_stay_finite(subject: Subject, verdict: Verdict, largest: float) -> None:
    product = make_product(subject, values_up_to((K, M), 0.37, 0))
    for step in range(4):
        (passed,) = product.train((values_up_to((N, K), largest, step), values_up_to((N, M), 1.0, 9)))
        predicted = product.predict(values_up_to((N, K), largest, step))
        verdict.finite({"output": passed.output, "prediction": predicted}, f"values of step {step}", "not-finite")
    scales = np.array([history.scale for history in product.amax_histories().values()])
    verdict.finite({"scale": 1.0 / scales}, "codes for a value at the scales", "not-finite")


@clause("formats.first-step-clips")
def test_prediction_before_first_step(subject: Subject, verdict: Verdict) -> None:
    product = make_product(subject, np.full((K, M), 1000.0, np.float32))
    inputs = np.ones((1, K), np.float32)
    before = float(product.predict(inputs)[0, 0])
    for _ in range(3):
        product.train((inputs, np.ones((1, M), np.float32)))
    after = float(product.predict(inputs)[0, 0])
    verdict.observe("clipped", {"exact": 1000.0 * K, "before any step": before, "after three": after})
