"""Float8 training runs that float32 computes exactly, so that the amax history is known bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, need
from conformance.techniques.float8_training.expected_steps import ExactRun
from conformance.techniques.formats.expected_products import SCALE
from fixtures.arrays import Array
from fixtures.layers import Dense, Head, Heads
from fixtures.model import Batch, Model, Window
from fixtures.recipe import SGD, Float8, Recipe, StaticScaling
from frameworks.contract import AmaxHistories, AmaxHistory, Capability, Float8Rule, Operand, Trainer, Update

HISTORY = 3
ITEMS, WIDTH, UNITS = 8, 16, 8
MODEL = Model("exact-layers", (Dense(WIDTH), Heads((Head("output", UNITS),))), (WIDTH,), (("output", "squared_error"),))
NAMES = ("0.weight", "1.output.weight")
_LARGEST = 1.75
"""The largest number of both formats is this times a power of two, so such a largest value gives an exact scale."""
_IDLE = WIDTH - 1
"""A feature that is always zero; the kernel's largest value is there."""

Powers = tuple[int, int]
"""Powers of two that inputs and gradients of a micro-batch are multiplied by."""
WINDOWS = ((0, 0), (3, -2), (-2, 1), (1, 3), (0, -4), (-3, 0))
"""Powers of two of inputs and gradients, window by window."""

EIGHTHS = Recipe(SGD(2.0**-6), quantization=Float8(HISTORY))
STILL = EIGHTHS.replace(optimizer=SGD(0.0))
"""A recipe under which weights stay and the amax history moves."""


def rule_of(subject: Subject) -> Float8Rule:
    """The declared rule; ends the test if there is none."""
    need(subject, Capability.FLOAT8_TRAINING)
    return subject.framework.rule(Float8Rule)


def kernels() -> dict[str, Array]:
    """The first is a permutation with signs, the second has few values; both in canonical shape."""
    rng = np.random.default_rng(23)
    first = np.zeros((WIDTH, WIDTH), np.float32)
    first[np.arange(WIDTH), rng.permutation(WIDTH)] = rng.choice([-1.0, 1.0], WIDTH)
    first[_IDLE] *= _LARGEST
    second = rng.choice([0.0, 0.25, -0.25, 0.5, -0.5, 1.0], (WIDTH, UNITS)).astype(np.float32)
    second[3, 2] = -_LARGEST
    return {NAMES[0]: first, NAMES[1]: second}


def weights() -> dict[str, Array]:
    """The kernels with biases of zero."""
    return {name: np.zeros(shape, np.float32) for name, shape in MODEL.parameter_shapes().items()} | kernels()


def drawn(shape: tuple[int, int], power: int, seed: Sequence[int]) -> Array:
    """Few values of both signs, the largest of them at any place but the idle feature's."""
    rng = np.random.default_rng(seed)
    values = rng.choice([0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0], shape)
    if shape[1] == WIDTH:
        values[:, _IDLE] = 0.0
    values[rng.integers(shape[0]), rng.integers(min(shape[1], _IDLE))] = rng.choice([-_LARGEST, _LARGEST])
    return np.asarray(values * 2.0**power, np.float32)


class TrackedRun:
    """A run and its expected amax history.

    Attributes:
        run: the framework's.
        exact: the expected state.
    """

    def __init__(self, subject: Subject, verdict: Verdict, recipe: Recipe) -> None:
        assert isinstance(recipe.quantization, Float8)
        self.rule = subject.framework.rule(Float8Rule)
        self.run: Trainer = subject.trainer(MODEL, recipe, weights())
        self.exact = ExactRun(self.rule, recipe.quantization.history, kernels())
        self._verdict, self._recipe, self._seed = verdict, recipe, subject.seed
        self._windows = 0

    def window(self, *powers: Powers, target: float | None = None, given: float | None = None) -> Window:
        """The next window, of as many micro-batches; `take` then updates the expected history.

        Args:
            target: takes the place of one target of the last micro-batch.
            given: takes the place of one input of the last micro-batch.
        """
        rows, batches, self._passes = ITEMS // len(powers), [], []
        factor = self._scale() * (len(powers) if self.rule.mean == "micro-batch" else 1)
        for place, (of_inputs, of_gradient) in enumerate(powers):
            seed = [self._seed, self._windows, place]
            inputs, gradient = (
                drawn((rows, WIDTH), of_inputs, [*seed, 1]),
                drawn((rows, UNITS), of_gradient, [*seed, 2]),
            )
            if given is not None and place == len(powers) - 1:
                inputs[1, 4] = given
            outputs = self.exact.outputs(inputs)
            targets = outputs - gradient * (ITEMS * UNITS / 2)
            if target is not None and place == len(powers) - 1:
                targets[1, 1] = target
                gradient = (outputs - targets) / (ITEMS * UNITS / 2)
            batches.append(Batch(inputs, {"output": targets.astype(np.float32)}))
            self._passes.append(self.exact.passed(inputs, gradient * factor))
        self._windows += 1
        return tuple(batches)

    def take(self) -> None:
        """Updates the expected history by the last window."""
        self.exact.take(*self._passes)

    def update(self, *powers: Powers, target: float | None = None, given: float | None = None) -> Update:
        """An update by a window, followed by a check of the amax history."""
        update = self.run.update(self.window(*powers, target=target, given=given))
        if not update.skipped or self.rule.skipped == "moves":
            self.take()
        self.check(f"after window {self._windows}")
        return update

    def check(self, when: str, run: Trainer | None = None) -> None:
        """Every history bit for bit, and every scale within the rounding of its quotient."""
        result = (run or self.run).view(AmaxHistories)
        self._verdict.equal(sorted(result), sorted(NAMES), f"layers with an amax history {when}", "other-layers")
        for (name, operand), _ in self.exact.magnitudes.items():
            history = result[name][operand]
            what = f"{operand} of {name} {when}"
            expected = self.exact.amax(name, operand)
            self._verdict.equal(np.sort(history.amax), expected, f"amax history of the {what}", "history")
            apart = abs(history.scale / self.exact.stored(name, operand) - 1.0)
            self._verdict.within(apart, SCALE, f"scale of the {what}, relative", "scale")

    def _scale(self) -> float:
        if isinstance(self._recipe.scaling, StaticScaling):
            return self._recipe.scaling.scale
        return float(self.run.scaler_state().get("scale", np.ones(())))


def memory(run: Trainer) -> dict[str, Array]:
    """A run's amax history and scales, as named arrays."""
    return {
        f"{name} {operand} {part}": np.array(value)
        for name, operands in run.view(AmaxHistories).items()
        for operand, history in operands.items()
        for part, value in _parts(operand, history).items()
    }


def _parts(operand: Operand, history: AmaxHistory) -> Mapping[str, object]:
    del operand
    return {"scale": history.scale, "maxima": np.sort(history.amax)}
