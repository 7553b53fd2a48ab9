"""The law of delayed scales: in any row of steps they follow the steps before, and predictions move nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from conformance.judging.subject import Subject
from conformance.judging.verdict import Verdict
from conformance.laws.codes import Checked, first_broken
from conformance.laws.declared import LawsOfAdapter
from conformance.laws.judging import Failure
from conformance.oracle.delayed_scaling import (
    SCALE,
    WITHIN,
    as_codes_have_it,
    furthest,
    product_and_bound,
    stored_scales,
)
from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import DelayedProduct, DelayedRule, Operand, Passed

CLAUSE = "formats.delayed-scaling"
OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")


@dataclass(frozen=True)
class DelayedStep:
    """A training step or a prediction.

    Attributes:
        powers: for each micro-batch, the powers of two by which the largest number of the format is multiplied for the
            largest input and the largest gradient; None for values that are all zero.
        predicts: whether this is a prediction of the inputs, which moves nothing.
        special: an input that is put in, infinite, or None.
    """

    powers: tuple[tuple[int | None, int | None], ...]
    predicts: bool = False
    special: float | None = None


@dataclass(frozen=True)
class DelayedCase:
    """A product of (n, k) and (k, m) with scales that follow earlier steps, and steps of it.

    Attributes:
        sizes: n, k and m.
        history: how many steps are remembered.
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

    def failure(self, subject: Subject, laws: LawsOfAdapter) -> Failure | None:  # noqa: ARG002
        """The first step after which something else is remembered, or of which something else came out."""
        return first_broken(self._checks(subject))

    def clause(self, subject: Subject, laws: LawsOfAdapter, failure: Failure) -> tuple[str, str]:  # noqa: ARG002
        """The clause that a failure breaks, and the sentence that says so."""
        return failure.name, failure.breaking(failure.name)

    def _checks(self, subject: Subject) -> Iterator[Checked]:
        kernel = _values(self.sizes[1:], self.kernel, NARROW["float8_e4m3fn"], [self.seed, 41])
        product = subject.framework.delayed_product(kernel, history=self.history, accumulation=self.accumulation)
        narrow = _formats(product.rule)
        seen: dict[Operand, list[float]] = {operand: [] for operand in OPERANDS}
        for place, step in enumerate(self.steps):
            window = self._window(step, place, narrow)
            if step.predicts:
                before = memory(product)
                first, again = (product.predict(window[0][0]) for _ in range(2))
                yield CLAUSE, _state(product, before, f"what is remembered after prediction {place}")
                yield CLAUSE, _same(again, first, f"prediction {place}, made again")
                continue
            inputs, gradients = ([pair[side] for pair in window] for side in (0, 1))
            for operand, values in zip(OPERANDS, (inputs, [kernel], gradients), strict=True):
                seen[operand].append(max(float(np.max(np.abs(each))) for each in values))
            passed = product.train(*window)
            for operand in OPERANDS:
                yield CLAUSE, self._remembers(product, operand, seen[operand], narrow[operand], place)
            if self.accumulation == 1 and step.special is None:
                used = self._used(product.rule, seen, narrow)
                yield from _results(passed[0], (*window[0], kernel), used, narrow, place)

    def _window(
        self, step: DelayedStep, place: int, narrow: dict[Operand, NarrowFormat]
    ) -> tuple[tuple[Array, Array], ...]:
        """Inputs and gradient of each micro-batch."""
        n, k, m = self.sizes
        window = []
        for micro, (largest, slope) in enumerate(step.powers):
            seed = [self.seed, 42, place, micro]
            inputs = _values((n, k), largest, narrow["input"], [*seed, 0])
            if step.special is not None and micro == len(step.powers) - 1:
                inputs.flat[inputs.size // 2] = step.special
            window.append((inputs, _values((n, m), slope, narrow["gradient"], [*seed, 1])))
        return tuple(window)

    def _remembers(
        self, product: DelayedProduct, operand: Operand, seen: list[float], narrow: NarrowFormat, place: int
    ) -> Callable[[Verdict], None]:
        kept = np.zeros(self.history, np.float32)
        last = seen[-self.history :]
        kept[: len(last)] = last
        remembered = product.remembered()[operand]
        expected = stored_scales(seen, narrow, self.history)[-1]

        def check(verdict: Verdict) -> None:
            what = f"of the {operand} after step {place}"
            verdict.equal(np.sort(remembered.maxima), np.sort(kept), f"largest values {what}", "history")
            verdict.within(abs(remembered.scale / expected - 1.0), SCALE, f"scale {what}, relative", "scale")

        return check

    def _used(
        self, rule: DelayedRule, seen: dict[Operand, list[float]], narrow: dict[Operand, NarrowFormat]
    ) -> dict[Operand, float]:
        """The scale that the last step's values were cast by."""
        given = {operand: stored_scales(values, narrow[operand], self.history) for operand, values in seen.items()}
        return {operand: ([1.0] * (rule.lag - 1) + scales)[-rule.lag] for operand, scales in given.items()}


def _formats(rule: DelayedRule) -> dict[Operand, NarrowFormat]:
    """The format that each operand is cast to."""
    operands = NARROW[rule.operands]
    return {"input": operands, "kernel": operands, "gradient": NARROW[rule.gradients]}


def _values(shape: tuple[int, ...], power: int | None, narrow: NarrowFormat, seed: list[int]) -> Array:
    """Values of both signs, float32, of which the largest is the format's largest times a power of two."""
    if power is None:
        return np.zeros(shape, np.float32)
    rng = np.random.default_rng(seed)
    values = np.exp2(rng.uniform(-9, 0, shape)) * rng.choice([-1.0, 1.0], shape)
    return np.asarray(values / np.abs(values).max() * np.ldexp(narrow.largest, power), np.float32)


def memory(product: DelayedProduct) -> dict[str, Array]:
    """What is remembered, to the last bit."""
    remembered = product.remembered()
    scales = {f"{operand} scale": np.array(remembered[operand].scale) for operand in OPERANDS}
    return scales | {f"{operand} maxima": np.sort(remembered[operand].maxima) for operand in OPERANDS}


def _state(product: DelayedProduct, before: dict[str, Array], what: str) -> Callable[[Verdict], None]:
    after = memory(product)
    return lambda verdict: verdict.same_state(after, before, what, "moved")


def _same(again: Array, first: Array, what: str) -> Callable[[Verdict], None]:
    return lambda verdict: verdict.equal(again, first, what, "prediction")


def _results(
    passed: Passed,
    operands: tuple[Array, Array, Array],
    used: dict[Operand, float],
    narrow: dict[Operand, NarrowFormat],
    place: int,
) -> Iterator[Checked]:
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
        apart = furthest(measured, *product_and_bound(left, right))
        yield CLAUSE, _within(apart, f"{name} of step {place}")


def _within(apart: float, what: str) -> Callable[[Verdict], None]:
    return lambda verdict: verdict.within(apart, WITHIN, what, "value")
