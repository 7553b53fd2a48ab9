"""Float8 by the declared rule: products with delayed scaling, and training runs that float32 computes exactly."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need_rule
from conformance.search import CheckedInstance, Property, breaking
from conformance.techniques import Technique
from conformance.techniques.formats import (
    SCALE,
    WITHIN,
    U,
    product_and_bound,
    round_to_codes,
    stored_scales,
    values_up_to,
    worst_share,
)
from fixtures.arrays import NARROW, Array, NarrowFormat
from fixtures.model import Batch, Dense, Head, Heads, Model, Window
from fixtures.recipe import SGD, Float8, Recipe, StaticScaling
from frameworks.contract import (
    AmaxHistories,
    AmaxHistory,
    Capability,
    DelayedProduct,
    DelayedProducts,
    DelayedRule,
    Float8Rule,
    Framework,
    Operand,
    PassResult,
    Trainer,
    Update,
)
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.float8 import Float8Layers, ReferenceDelayedProduct
from frameworks.reference.training.trainer import ReferenceTrainer

OPERANDS: tuple[Operand, ...] = ("input", "kernel", "gradient")
_POWERS = st.integers(-6, 6)
LONGEST = 8
"""Largest number of steps for an amax history up to this length; a longer history gets up to twice its length."""
QUOTIENT = 8 * U
"""Relative error of a value's quotient by its scale: four roundings in the scale, and the quotient's own."""
SCALES = 12
"""Number of roundings that the two scales of a product add to those of its sum."""
HISTORY = 3
"""Length of the amax history of an exact run."""
ITEMS, WIDTH, UNITS = 8, 16, 8
"""Samples of a window, features of a sample and of the first layer, and outputs of the exact model."""
MODEL = Model("exact-layers", (Dense(WIDTH), Heads((Head("output", UNITS),))), (WIDTH,), (("output", "squared_error"),))
NAMES = ("0.weight", "1.output.weight")
_LARGEST = 1.75
"""The largest number of both formats is a power of two times this, so a largest value like this has an exact scale."""
_IDLE = WIDTH - 1
"""Index of a feature that is always zero; the kernel has its largest value there."""
Powers = tuple[int, int]
"""Exponents of the powers of two that multiply inputs and gradients of a micro-batch."""
WINDOWS = ((0, 0), (3, -2), (-2, 1), (1, 3), (0, -4), (-3, 0))
"""Exponents for inputs and gradients, window by window."""
EIGHTHS = Recipe(SGD(2.0**-6), quantization=Float8(HISTORY))
STILL = EIGHTHS.replace(optimizer=SGD(0.0))
"""A recipe under which weights stay the same and the amax history changes."""


def formats_of(rule: DelayedRule) -> dict[Operand, NarrowFormat]:
    """Return the format to which each operand is cast."""
    operands = NARROW[rule.operands]
    return {"input": operands, "kernel": operands, "gradient": NARROW[rule.gradients]}


def sorted_history(maxima: Sequence[float], length: int) -> Array:
    """Return the amax history after steps with these maxima, sorted, float32; it begins with zeros."""
    recent = maxima[-length:]
    return np.sort(np.array([*recent, *[0.0] * (length - len(recent))], np.float32))


def amax_state(product: DelayedProduct) -> dict[str, Array]:
    """Return the amax history and scales, with all bits."""
    history = product.amax_histories()
    scales = {f"{operand} scale": np.array(history[operand].scale) for operand in OPERANDS}
    return scales | {f"{operand} maxima": np.sort(history[operand].amax) for operand in OPERANDS}


class ExpectedScales:
    """Amax history and scales that a product must have after the steps recorded so far."""

    def __init__(self, rule: DelayedRule, history: int) -> None:
        self._rule, self._history, self._formats = rule, history, formats_of(rule)
        self._maxima: dict[Operand, list[float]] = {operand: [] for operand in OPERANDS}

    def record(self, inputs: Sequence[Array], kernel: Array, gradients: Sequence[Array]) -> None:
        """Record a training step, given the inputs and gradients of its micro-batches."""
        for operand, values in zip(OPERANDS, (inputs, [kernel], gradients), strict=True):
            self._maxima[operand].append(float(np.max([np.max(np.abs(array)) for array in values])))

    def check_history(self, verdict: Verdict, product: DelayedProduct) -> None:
        """Check the amax history and the scale of each operand after the last step."""
        observed = product.amax_histories()
        for operand in OPERANDS:
            history, maxima = observed[operand], self._maxima[operand]
            what = f"of the {operand} after step {len(maxima) - 1}"
            expected = sorted_history(maxima, self._history)
            verdict.equal(np.sort(history.amax), expected, f"amax history {what}", "history")
            error = abs(history.scale / self._compute_stored_scales(operand)[-1] - 1.0)
            verdict.within(error, SCALE, f"scale {what}, relative", "scale")

    def check_results(
        self, verdict: Verdict, passed: PassResult, inputs: Array, kernel: Array, gradient: Array
    ) -> None:
        """Check output and gradients of the last step, which has one micro-batch."""
        step = len(self._maxima["input"]) - 1
        activations, weights, back = (
            round_to_codes(values, self._compute_cast_scale(operand), self._formats[operand])
            for operand, values in zip(OPERANDS, (inputs, kernel, gradient), strict=True)
        )
        for name, measured, left, right in (
            ("output", passed.output, activations, weights),
            ("gradient of the input", passed.input_gradient, back, weights.T),
            ("gradient of the kernel", passed.kernel_gradient, activations.T, back),
        ):
            share = worst_share(measured, *product_and_bound(left, right))
            verdict.within(share, WITHIN, f"{name} of step {step}", "value")

    def _compute_stored_scales(self, operand: Operand) -> list[float]:
        return stored_scales(self._maxima[operand], self._formats[operand], self._history)

    def _compute_cast_scale(self, operand: Operand) -> float:
        """Return the scale of the last step's casts."""
        return ([1.0] * (self._rule.lag - 1) + self._compute_stored_scales(operand))[-self._rule.lag]


@dataclass(frozen=True)
class DelayedStep:
    """A training step or a prediction.

    Attributes:
        powers: two exponents for each micro-batch: the largest input and the largest gradient are the largest number
            of the format times 2 to these. None for values that are all zero.
        predicts: whether this is a prediction of the inputs, which changes no state.
        special: an infinite or NaN input that some micro-batch contains; None for none.
    """

    powers: tuple[tuple[int | None, int | None], ...]
    predicts: bool = False
    special: float | None = None


@dataclass(frozen=True)
class DelayedCase(CheckedInstance):
    """A product of (n, k) and (k, m) with delayed scaling, and the steps that it makes.

    Attributes:
        sizes: n, k and m.
        history: length of the amax history.
        accumulation: number of micro-batches of a step.
        kernel: the kernel's largest value is the format's largest number times 2 to this power.
    """

    sizes: tuple[int, int, int]
    history: int
    accumulation: int
    kernel: int
    steps: tuple[DelayedStep, ...]
    seed: int

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        several = {"delayed=window"} if self.accumulation > 1 else set()
        special = {"delayed=infinite"} if any(step.special is not None for step in self.steps) else set()
        return frozenset({"delayed"} | several | special)

    def check(self, subject: Subject) -> None:
        """Check the amax history after each step, and the step's results."""
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
        """Return inputs and gradient of each micro-batch."""
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
    """Return values of both signs, float32; the largest is the format's largest times a power of two."""
    if power is None:
        return np.zeros(shape, np.float32)
    return values_up_to(shape, float(np.ldexp(narrow.largest, power)), seed)


def _check_prediction(verdict: Verdict, product: DelayedProduct, inputs: Array, index: int) -> None:
    """Check that two predictions are equal and leave the amax history unchanged."""
    before = amax_state(product)
    first, repeated = (product.predict(inputs) for _ in range(2))
    verdict.same_state(amax_state(product), before, f"amax history after prediction {index}", "moved")
    verdict.equal(repeated, first, f"prediction {index}, repeated", "prediction")


@st.composite
def draw_case(draw: st.DrawFn, framework: Framework) -> DelayedCase:  # noqa: ARG001
    """Draw a case with a history shorter or longer than its steps, and windows of one to three micro-batches."""
    side = st.sampled_from([1, 2, 3, 7, 16, 24, 33])
    history = draw(st.integers(1, 5) | st.sampled_from([16, 17, 20]))
    accumulation = draw(st.sampled_from([1, 1, 1, 2, 3]))
    count = draw(st.integers(2, max(LONGEST, 2 * history) if history > LONGEST else LONGEST))
    steps = tuple(draw(_steps(accumulation)) for _ in range(count))
    sizes = draw(side), draw(side), draw(side)
    return DelayedCase(sizes, history, accumulation, draw(st.integers(-6, 3)), steps, draw(st.integers(0, 99)))


@st.composite
def _steps(draw: st.DrawFn, accumulation: int) -> DelayedStep:
    """Draw a step: mostly training with varying magnitudes; now and then zeros, a non-finite value, or a prediction."""
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
    properties={
        "laws.delayed-scales": Property(number=12, draw=draw_case, share=1 / 8, needs=(Capability.DELAYED_SCALING,))
    },
    breaks=("formats.delayed-scaling",),
    features=("delayed=window", "delayed=infinite"),
    places={ReferenceDelayedProduct: ("delayed_class", ReferenceFramework)},
)


def used_scale(rule: DelayedRule, operand: Operand, history: AmaxHistory) -> float:
    """Return the scale of the next cast, from the amax history."""
    if rule.lag == 2:
        return history.scale
    most = float(np.max(history.amax))
    return most / formats_of(rule)[operand].largest if np.isfinite(most) and most > 0 else history.scale


@dataclass(frozen=True)
class Cast:
    """Dequantized values, float64, and their bound, which is one step near a midpoint between codes."""

    values: Array
    uncertainty: Array


def cast(values: Array, scale: float, narrow: NarrowFormat) -> Cast:
    """Return the cast of values whose quotients may be rounded once more."""
    wide = values.astype(np.float64)
    exact = round_to_codes(wide, scale, narrow)
    others = [round_to_codes(wide * (1.0 + side * QUOTIENT), scale, narrow) for side in (-1, 1)]
    return Cast(exact, np.maximum(*(np.abs(other - exact) for other in others)))


@dataclass(frozen=True)
class BoundedResult:
    """The expected result and its bound."""

    values: Array
    bound: Array


def product(left: Cast, right: Cast) -> BoundedResult:
    """Return (n, k) times (k, m), and a bound: (k + 12)·u·Σ|a||b| for float32 sums, plus that of uncertain codes."""
    sizes = np.abs(left.values) @ np.abs(right.values)
    from_codes = left.uncertainty @ (np.abs(right.values) + right.uncertainty) + np.abs(left.values) @ right.uncertainty
    return BoundedResult(left.values @ right.values, (left.values.shape[1] + SCALES) * U * sizes + from_codes)


@dataclass(frozen=True)
class Float8Layer:
    """Output and gradients of a dense layer."""

    outputs: BoundedResult
    weight_gradient: BoundedResult
    input_gradient: BoundedResult


def layer(
    inputs: Array, weight: Array, bias: Array, gradient: Array, rule: DelayedRule, memory: Mapping[Operand, AmaxHistory]
) -> Float8Layer:
    """Return a dense layer of float32 inputs (n, k), weight (k, m) and bias (m,), by the amax history before its pass.

    `gradient` is the gradient of the layer's output, (n, m), as it is cast: multiplied by the loss scale.
    """
    operands: dict[Operand, Array] = {"input": inputs, "kernel": weight, "gradient": gradient}
    x, w, g = (
        cast(values, used_scale(rule, operand, memory[operand]), formats_of(rule)[operand])
        for operand, values in operands.items()
    )
    result = product(x, w)
    rounding = 2 * U * (np.abs(result.values) + np.abs(bias))
    return Float8Layer(
        BoundedResult(result.values + bias, result.bound + rounding),
        product(_transpose(x), g),
        product(g, _transpose(w)),
    )


def _transpose(operand: Cast) -> Cast:
    return Cast(operand.values.T, operand.uncertainty.T)


@dataclass(frozen=True)
class PassMagnitudes:
    """Results of one micro-batch of an exact run: the head's outputs, and the amax of each operand."""

    outputs: Array
    amax: dict[tuple[str, Operand], float]


class ExactRun:
    """A sequence of dense layers without biases and with constant kernels, in which every value is exact.

    Kernels, inputs and gradients are chosen so that every scale but that of the first layer's gradient is a power of 2,
    and every value has a code or is clipped. Float32 then rounds nothing, whatever the order of addition.
    """

    def __init__(self, rule: Float8Rule, history: int, kernels: Mapping[str, Array]) -> None:
        self.rule, self.history = rule, history
        self.kernels = {name: kernel.astype(np.float64) for name, kernel in kernels.items()}
        self.magnitudes: dict[tuple[str, Operand], list[float]] = {(n, o): [] for n in kernels for o in OPERANDS}

    def outputs(self, inputs: Array) -> Array:
        """Return the last layer's output, (n, m), float64."""
        x = inputs.astype(np.float64)
        for name in self.kernels:
            x = self._cast(name, "input", x) @ self._cast(name, "kernel", self.kernels[name])
        return x

    def run_pass(self, inputs: Array, gradient: Array) -> PassMagnitudes:
        """Run one micro-batch: inputs (n, k), and the gradient of the last layer's output (n, m) as it is cast."""
        x, maxima = inputs.astype(np.float64), dict[tuple[str, Operand], float]()
        for name, kernel in self.kernels.items():
            maxima[name, "input"], maxima[name, "kernel"] = _most(x), _most(kernel)
            x = self._cast(name, "input", x) @ self._cast(name, "kernel", kernel)
        back = gradient.astype(np.float64)
        for name, kernel in reversed(self.kernels.items()):
            maxima[name, "gradient"] = _most(back)
            with np.errstate(invalid="ignore"):
                back = self._cast(name, "gradient", back) @ self._cast(name, "kernel", kernel).T
        return PassMagnitudes(x, maxima)

    def take(self, *window: PassMagnitudes) -> None:
        """Add a window, which is one step of the amax history."""
        for key, maxima in self.magnitudes.items():
            maxima.append(float(np.max([micro_batch.amax[key] for micro_batch in window])))

    def amax(self, name: str, operand: Operand) -> Array:
        """Return the amax history of an operand, sorted."""
        return sorted_history(self.magnitudes[name, operand], self.history)

    def compute_stored_scale(self, name: str, operand: Operand) -> float:
        """Return the stored scale."""
        return [1.0, *self._compute_stored_scales(name, operand, self.magnitudes[name, operand])][-1]

    def compute_cast_scale(self, name: str, operand: Operand) -> float:
        """Return the scale with which the next pass casts."""
        if self.rule.product.lag == 2:
            return self.compute_stored_scale(name, operand)
        return self._compute_stored_scales(name, operand, [*self.magnitudes[name, operand], 0.0])[-1]

    def _compute_stored_scales(self, name: str, operand: Operand, maxima: Sequence[float]) -> list[float]:
        return stored_scales(maxima, formats_of(self.rule.product)[operand], self.history)

    def _cast(self, name: str, operand: Operand, values: Array) -> Array:
        return round_to_codes(values, self.compute_cast_scale(name, operand), formats_of(self.rule.product)[operand])


def _most(values: Array) -> float:
    return float(np.max(np.abs(values)))


def rule_of(subject: Subject) -> Float8Rule:
    """Return the declared rule; end the test if there is none."""
    return need_rule(subject, Capability.FLOAT8_TRAINING, Float8Rule)


def kernels() -> dict[str, Array]:
    """Return the kernels in canonical shape: the first is a signed permutation, the second has few distinct values."""
    rng = np.random.default_rng(23)
    first = np.zeros((WIDTH, WIDTH), np.float32)
    first[np.arange(WIDTH), rng.permutation(WIDTH)] = rng.choice([-1.0, 1.0], WIDTH)
    first[_IDLE] *= _LARGEST
    second = rng.choice([0.0, 0.25, -0.25, 0.5, -0.5, 1.0], (WIDTH, UNITS)).astype(np.float32)
    second[3, 2] = -_LARGEST
    return {NAMES[0]: first, NAMES[1]: second}


def weights() -> dict[str, Array]:
    """Return the kernels, with biases of zero."""
    return {name: np.zeros(shape, np.float32) for name, shape in MODEL.parameter_shapes().items()} | kernels()


def draw_values(shape: tuple[int, int], power: int, seed: Sequence[int]) -> Array:
    """Return values of both signs, few of them distinct, with the largest anywhere but at the idle feature."""
    rng = np.random.default_rng(seed)
    values = rng.choice([0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0], shape)
    if shape[1] == WIDTH:
        values[:, _IDLE] = 0.0
    values[rng.integers(shape[0]), rng.integers(min(shape[1], _IDLE))] = rng.choice([-_LARGEST, _LARGEST])
    return np.asarray(values * 2.0**power, np.float32)


class TrackedRun:
    """A run and its expected amax history.

    Attributes:
        run: the run on the framework.
        exact: the expected state.
    """

    def __init__(self, subject: Subject, verdict: Verdict, recipe: Recipe) -> None:
        assert isinstance(recipe.quantization, Float8)
        self.rule = subject.framework.rule(Float8Rule)
        self.run: Trainer = subject.trainer(MODEL, recipe, weights())
        self.exact = ExactRun(self.rule, recipe.quantization.history, kernels())
        self._verdict, self._recipe, self._seed = verdict, recipe, subject.seed
        self._windows = 0

    def window(self, *powers: Powers, target: float | None = None, input_value: float | None = None) -> Window:
        """Return the next window, one micro-batch for each of `powers`; `take` then updates the expected history.

        Args:
            target: replaces one target of the last micro-batch.
            input_value: replaces one input of the last micro-batch.
        """
        rows, batches, self._passes = ITEMS // len(powers), [], []
        factor = self._scale() * (len(powers) if self.rule.mean == "micro-batch" else 1)
        for index, (of_inputs, of_gradient) in enumerate(powers):
            seed = [self._seed, self._windows, index]
            inputs = draw_values((rows, WIDTH), of_inputs, [*seed, 1])
            gradient = draw_values((rows, UNITS), of_gradient, [*seed, 2])
            if input_value is not None and index == len(powers) - 1:
                inputs[1, 4] = input_value
            outputs = self.exact.outputs(inputs)
            targets = outputs - gradient * (ITEMS * UNITS / 2)
            if target is not None and index == len(powers) - 1:
                targets[1, 1] = target
                gradient = (outputs - targets) / (ITEMS * UNITS / 2)
            batches.append(Batch(inputs, {"output": targets.astype(np.float32)}))
            self._passes.append(self.exact.run_pass(inputs, gradient * factor))
        self._windows += 1
        return tuple(batches)

    def take(self) -> None:
        """Update the expected history with the last window."""
        self.exact.take(*self._passes)

    def update(self, *powers: Powers, target: float | None = None, input_value: float | None = None) -> Update:
        """Update the run by a window, then check the amax history."""
        update = self.run.update(self.window(*powers, target=target, input_value=input_value))
        if not update.skipped or self.rule.skipped == "moves":
            self.take()
        self.check(f"after window {self._windows}")
        return update

    def check(self, when: str, run: Trainer | None = None) -> None:
        """Check every history bit for bit, and every scale within the rounding of its quotient."""
        result = (run or self.run).view(AmaxHistories)
        self._verdict.equal(sorted(result), sorted(NAMES), f"layers with an amax history {when}", "other-layers")
        for (name, operand), _ in self.exact.magnitudes.items():
            history = result[name][operand]
            what = f"{operand} of {name} {when}"
            expected = self.exact.amax(name, operand)
            self._verdict.equal(np.sort(history.amax), expected, f"amax history of the {what}", "history")
            error = abs(history.scale / self.exact.compute_stored_scale(name, operand) - 1.0)
            self._verdict.within(error, SCALE, f"scale of the {what}, relative", "scale")

    def _scale(self) -> float:
        if isinstance(self._recipe.scaling, StaticScaling):
            return self._recipe.scaling.scale
        return float(self.run.scaler_state().get("scale", np.ones(())))


def memory(run: Trainer) -> dict[str, Array]:
    """Return a run's amax history and scales, as named arrays."""
    return {
        f"{name} {operand} {part}": np.array(value)
        for name, operands in run.view(AmaxHistories).items()
        for operand, history in operands.items()
        for part, value in (("scale", history.scale), ("maxima", np.sort(history.amax)))
    }


FLOAT8_TRAINING = Technique(
    recipes=(Recipe(quantization=Float8()),),
    rows={"float8-training": "float8 training"},
    clauses={"formats.float8-*": "float8-training"},
    places={Float8Layers: ("float8_class", ReferenceTrainer)},
)
