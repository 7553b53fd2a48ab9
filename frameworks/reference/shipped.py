"""Examples of the reference's operations, functions and optimizers, with their results under each technique."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.optimizers import OPTIMIZERS
from frameworks.base.shipped import (
    FACTOR,
    HALFWAY,
    RATE,
    BaseOptimizers,
    BaseShipped,
    Options,
    gradients,
    incoming,
    infinite,
    inputs,
)
from frameworks.contract import Conventions, Values
from frameworks.reference.core import scope
from frameworks.reference.core.arithmetic import UNARY, Operations
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.tape import Tensor, recompute_function, record_pullbacks
from frameworks.reference.training.optimizers import RULES, Arithmetic, Slots, UpdateRule

Call = Callable[..., Tensor]
_EPSILON = 1e-5


class ReferenceShipped(BaseShipped):
    """Products, activations, reductions, a norm layer and dropout. Faults override a method."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations
        self.draws = 0
        self.examples: Mapping[str, tuple[str, Call]] = {
            "matmul": ("product", operations.matmul),
            "linear": ("product-vector", operations.linear),
            "multiply": ("pair", partial(operations.apply, "multiply", lambda a, b, _: a * b)),
            "sum": ("tensor", partial(operations.apply, "sum", lambda a, _: anp.sum(a))),
            "layer_norm": ("tensor-scaled", partial(self._norm, operations)),
            "dropout": ("tensor", self._dropout),
            **{kind: ("tensor", partial(operations.activation, kind)) for kind in UNARY},
        }

    def names(self) -> tuple[str, ...]:
        return tuple(self.examples)

    def techniques(self) -> tuple[str, ...]:
        return ("without-gradient", "one-input", "used-twice", "scaled", "recomputed", "scope-off")

    def at(self, name: str, *points: Array) -> tuple[Array, ...]:
        kind, call = self.examples[name]
        if kind != {1: "tensor", 2: "pair"}[len(points)] or (len(points) == 1 and name not in UNARY):
            raise TypeError(f"{name} is no function of {len(points)} arrays")
        dtype = points[0].dtype

        def function(values: Any) -> Any:
            return [call(*(Tensor(value, dtype.name) for value in values)).value]

        (value,), (pull,) = record_pullbacks(function, tuple(point.astype(np.float64) for point in points))
        return value.astype(dtype), *(gradient.astype(dtype) for gradient in pull(np.ones(points[0].shape)))

    @staticmethod
    def _norm(operations: Operations, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return operations.layer_norm(x, scale, shift, _EPSILON)

    def _dropout(self, x: Tensor) -> Tensor:
        self.draws += 1
        return self.operations.dropout(x, np.random.default_rng(self.draws).random(x.shape) >= 0.5, 0.5)

    def compute(self, name: str, technique: str) -> Values:
        kind, call = self.examples[name]
        leaves = [leaf.astype(np.float64) for leaf in inputs(kind)]
        self.draws = 0

        def function(*values: Any) -> Any:
            return call(*(Tensor(value, "float32") for value in values)).value

        if technique == "without-gradient":
            return {"value/0": function(*leaves)}
        if technique == "scope-off":
            with scope.open_scope(scope.Scope()):
                return self.differentiate(function, leaves, technique)
        if technique == "one-input":
            return self.of_each(function, leaves)
        if technique == "recomputed":
            return self.differentiate(partial(recompute_function, function, replay=self.replay), leaves, technique)
        return self.differentiate(function, leaves, technique)

    def differentiate(self, function: Callable[..., Any], leaves: Sequence[Array], technique: str) -> Values:
        """The output and the gradient of each leaf."""
        (output,), (pull,) = record_pullbacks(lambda values: [function(*values)], tuple(leaves))
        factor = FACTOR if technique == "scaled" else 1.0
        cotangent = incoming(np.shape(output)).astype(np.float64) * factor
        if technique == "used-twice":
            pull(cotangent)
        return {"value/0": output} | {
            f"gradient/{index}": gradient / factor for index, gradient in enumerate(pull(cotangent))
        }

    def of_each(self, function: Callable[..., Any], leaves: Sequence[Array]) -> Values:
        """The gradient of each leaf, from a pass in which only that leaf needs a gradient."""
        results: dict[str, Array | None] = {}
        for index, leaf in enumerate(leaves):
            self.draws = 0
            alone = partial(_at, function, leaves, index)
            results[f"gradient/{index}"] = self.differentiate(alone, [leaf], "")["gradient/0"]
        return results

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Context of the second run of a recomputed operation: it draws the same random numbers as the first run."""
        later, self.draws = self.draws, 0
        try:
            yield
        finally:
            self.draws = later


class ReferenceFunctions(ReferenceShipped):
    """Functions under recomputation: one with a branch, one with a loop, one that writes rows one by one."""

    steps = 3
    """Steps of the loop."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self.examples = {
            "branch": ("tensor", self._branch),
            "loop": ("matrix", self._loop),
            "collected": ("tensor", partial(operations.apply, "sum", _by_rows)),
        }

    def techniques(self) -> tuple[str, ...]:
        return ("recomputed",)

    def _branch(self, x: Tensor) -> Tensor:
        return self.operations.activation("tanh" if anp.sum(x.value) > 0.0 else "relu", x)

    def _loop(self, x: Tensor) -> Tensor:
        y = x
        for _ in range(self.steps):
            y = self.operations.activation("tanh", self.operations.matmul(y, x))
        return y


def _by_rows(x: Any, _: Any) -> Any:
    return anp.stack([row * float(number) for number, row in enumerate(x, 1)])


def _at(function: Callable[..., Any], leaves: Sequence[Array], index: int, value: Any) -> Any:
    return function(*leaves[:index], value, *leaves[index + 1 :])


_OPTIONS: Mapping[str, Sequence[Options]] = {
    "SGD": [{"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}],
    "Adam": [{"amsgrad": True}],
    "AdamW": [{"weight_decay": 0.1}],
    "Adagrad": [{"initial": 0.1}],
    "RMSprop": [{"centred": True, "momentum": 0.5}],
}
"""Sets of options by optimizer, without the empty one, which is the first of each."""


class ReferenceOptimizers(BaseOptimizers):
    """Every update rule of the reference. Faults override a method."""

    def __init__(self, rounding: Rounding, conventions: Conventions) -> None:
        super().__init__()
        self.rounding = rounding
        self.conventions = conventions

    def names(self) -> tuple[str, ...]:
        return tuple(optimizer.__name__ for optimizer in OPTIMIZERS)

    def techniques(self) -> tuple[str, ...]:
        return ("loaded", "reordered", "beside-frozen", "skipped")

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return [{}, *_OPTIONS.get(name, ())]

    def get_options_without_decay(self, name: str) -> Options:
        return {"weight_decay": 0.0}

    def matrices_only(self, name: str) -> bool:
        return name == "Muon"

    def train(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        kinds: Mapping[str, Any] = {optimizer.__name__: optimizer for optimizer in OPTIMIZERS}
        optimizer = kinds[name](RATE, **options)
        rule = RULES[type(optimizer)](optimizer, self.conventions, self.arithmetic(start[0].dtype.name))
        weights = [weight.astype(np.float64) for weight in start]
        states, count = [_make_slots(rule, weight) for weight in weights], 0
        for number, update in enumerate(gradients(start, technique)):
            if number == HALFWAY and technique == "loaded":
                states, count = self.load_states(states, count)
            if number == HALFWAY and technique == "skipped" and not self.skips(infinite(start)):
                update = infinite(start)
            count += 1
            weights, states = self.update_weights(rule, weights, states, update, count, technique)
        return [weight.astype(of.dtype) for weight, of in zip(weights, start, strict=True)]

    def arithmetic(self, format_name: str) -> Arithmetic:
        """The arithmetic of an update in this format."""
        return Arithmetic(self.rounding, FORMATS[format_name].name)

    def update_weights(
        self,
        rule: UpdateRule,
        weights: Sequence[Array],
        states: Sequence[Slots],
        update: Sequence[Array],
        count: int,
        technique: str,
    ) -> tuple[list[Array], list[Slots]]:
        """The weights and states after one update."""
        places = range(len(weights))[:: -1 if technique == "reordered" else 1]
        moved = {
            index: rule(weights[index], states[index], update[index].astype(np.float64), RATE, count)
            for index in places
        }
        return [moved[index][0] for index in sorted(moved)], [moved[index][1] for index in sorted(moved)]

    def load_states(self, states: Sequence[Slots], count: int) -> tuple[list[Slots], int]:
        """The states and the update count that a new run restores from the saved ones."""
        return [dict(state) for state in states], count

    def skips(self, update: Sequence[Array]) -> bool:
        """Returns whether the update is skipped because a gradient is not finite."""
        return not all(np.isfinite(gradient).all() for gradient in update)


def _make_slots(rule: UpdateRule, weight: Array) -> Slots:
    optimizer = rule.optimizer
    shapes = {slot: rule.shape(optimizer, slot, weight.shape) for slot in rule.slots(optimizer)}
    return {slot: np.full(shape, rule.start(optimizer, slot)) for slot, shape in shapes.items() if shape is not None}
