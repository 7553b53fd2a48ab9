"""The reference's update rules on a fixed problem, and what techniques make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array
from fixtures.recipe import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from frameworks.base.shipped import HALFWAY, RATE, BaseOptimizers, Options, gradients, infinite
from frameworks.contract import Conventions
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.training.optimizers import RULES, Arithmetic, Slots, UpdateRule

_OPTIMIZERS: Mapping[str, tuple[type[Optimizer], Sequence[Options]]] = {
    "SGD": (SGD, [{}, {"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}]),
    "Adam": (Adam, [{}, {"amsgrad": True}]),
    "AdamW": (AdamW, [{}, {"weight_decay": 0.1}]),
    "Adagrad": (Adagrad, [{}, {"initial": 0.1}]),
    "RMSprop": (RMSprop, [{}, {"centred": True, "momentum": 0.5}]),
    "Adafactor": (Adafactor, [{}]),
    "Muon": (Muon, [{}]),
}


class ReferenceOptimizers(BaseOptimizers):
    """Every update rule, a method each decision."""

    def __init__(self, rounding: Rounding, conventions: Conventions) -> None:
        super().__init__()
        self.rounding = rounding
        self.conventions = conventions

    def names(self) -> tuple[str, ...]:
        return tuple(_OPTIMIZERS)

    def techniques(self) -> tuple[str, ...]:
        return ("loaded", "reordered", "beside-frozen", "skipped")

    def options(self, name: str, technique: str) -> Sequence[Options]:
        del technique
        return _OPTIMIZERS[name][1]

    def undecayed(self, name: str) -> Options:
        return {"weight_decay": 0.0}

    def matrices_only(self, name: str) -> bool:
        return name == "Muon"

    def trained(self, name: str, options: Options, technique: str, start: Sequence[Array]) -> Sequence[Array]:
        optimizer: Any = _OPTIMIZERS[name][0](RATE, **options)
        rule = RULES[type(optimizer)](optimizer, self.conventions, self.arithmetic(start[0].dtype.name))
        weights = [each.astype(np.float64) for each in start]
        states, count = [_started(rule, each) for each in weights], 0
        for number, update in enumerate(gradients(start, technique)):
            if number == HALFWAY and technique == "loaded":
                states, count = self.loaded(states, count)
            if number == HALFWAY and technique == "skipped" and not self.skips(infinite(start)):
                update = infinite(start)
            count += 1
            weights, states = self.updated(rule, weights, states, update, count, technique)
        return [each.astype(of.dtype) for each, of in zip(weights, start, strict=True)]

    def arithmetic(self, format_name: str) -> Arithmetic:
        """What rounds an update in this format."""
        return Arithmetic(self.rounding, FORMATS[format_name].name)

    def updated(
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
            place: rule(weights[place], states[place], update[place].astype(np.float64), RATE, count)
            for place in places
        }
        return [moved[place][0] for place in sorted(moved)], [moved[place][1] for place in sorted(moved)]

    def loaded(self, states: Sequence[Slots], count: int) -> tuple[list[Slots], int]:
        """What a new run gets from the saved states and count of updates."""
        return [dict(each) for each in states], count

    def skips(self, update: Sequence[Array]) -> bool:
        """Whether an update is left out."""
        return not all(np.isfinite(each).all() for each in update)


def _started(rule: UpdateRule, weight: Array) -> Slots:
    optimizer = rule.optimizer
    shapes = {slot: rule.shape(optimizer, slot, weight.shape) for slot in rule.slots(optimizer)}
    return {slot: np.full(shape, rule.start(optimizer, slot)) for slot, shape in shapes.items() if shape is not None}
