"""SGD, Adam and AdamW, every arithmetic operation rounded to the format that the weights are stored in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fixtures.arrays import FORMATS, Array, wider
from fixtures.recipe import SGD, Adam, AdamW, Optimizer
from frameworks.contract import Conventions
from frameworks.reference.rounding import Rounding

EPSILON = Conventions().adam_default_epsilon
"""Kingma & Ba's, arXiv:1412.6980."""


def slot_names(optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the moments that the optimizer keeps for a parameter."""
    if isinstance(optimizer, SGD):
        return ("momentum",) if optimizer.momentum else ()
    return ("first_moment", "second_moment")


@dataclass(frozen=True)
class Arithmetic:
    """Rounds arrays to a storage format, and hyperparameters to float32 or wider."""

    rounding: Rounding
    format: str

    def __call__(self, value: Array) -> Array:
        return self.rounding.round(value, self.format)

    def number(self, value: float) -> float:
        """A hyperparameter as the update uses it."""
        return self.rounding.constant(value, wider(self.format, "float32"))

    def epsilon(self, value: float) -> float:
        """Adam's epsilon, raised to the smallest positive value of the format where it would be rounded to zero."""
        return max(value, FORMATS[self.format].smallest_subnormal)


Step = Callable[[Array, Mapping[str, Array], Array, float, int], tuple[Array, dict[str, Array]]]
"""(weight, slots, gradient, learning rate, number of this update from 1) → (new weight, new slots)."""


def stepper(optimizer: Optimizer, conventions: Conventions, r: Arithmetic) -> Step:
    """The update rule of an optimizer under a framework's conventions."""
    match optimizer:
        case SGD():
            return lambda p, slots, g, rate, _: _sgd(optimizer, conventions, r, p, slots, g, rate)
        case Adam() | AdamW():
            return lambda p, slots, g, rate, count: _adam(optimizer, conventions, r, p, slots, g, rate, count)


def _sgd(
    optimizer: SGD, conventions: Conventions, r: Arithmetic, p: Array, slots: Mapping[str, Array], g: Array, rate: float
) -> tuple[Array, dict[str, Array]]:
    rate = r.number(rate)
    if not optimizer.momentum:
        return r(p - r(rate * g)), {}
    decayed = r(r.number(optimizer.momentum) * slots["momentum"])
    if conventions.momentum_rate == "inside":
        velocity = r(decayed - r(rate * g))
        return r(p + velocity), {"momentum": velocity}
    velocity = r(decayed + g)
    return r(p - r(rate * velocity)), {"momentum": velocity}


def _adam(
    optimizer: Adam | AdamW,
    conventions: Conventions,
    r: Arithmetic,
    p: Array,
    slots: Mapping[str, Array],
    g: Array,
    rate: float,
    count: int,
) -> tuple[Array, dict[str, Array]]:
    """Source: Kingma & Ba 2015, algorithm 1 and the end of section 2; Loshchilov & Hutter 2019, algorithm 2."""
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    epsilon = r.epsilon(conventions.adam_default_epsilon if optimizer.epsilon is None else optimizer.epsilon)
    if isinstance(optimizer, AdamW):
        p = r(p * r.number(1.0 - rate * optimizer.weight_decay))
    shares = [_share(beta, conventions, r) for beta in (beta1, beta2)]
    first = r(r(r.number(beta1) * slots["first_moment"]) + r(r.number(shares[0]) * g))
    second = r(r(r.number(beta2) * slots["second_moment"]) + r(r(r.number(shares[1]) * g) * g))
    one, two = (_correction(beta, count, conventions, r) for beta in (beta1, beta2))
    if conventions.adam_epsilon == "inside":
        moved = r(r(r.number(rate * np.sqrt(two) / one) * first) / r(r(np.sqrt(second)) + epsilon))
    else:
        root = r(r(np.sqrt(second)) / r.number(float(np.sqrt(two))))
        moved = r(r.number(rate / one) * r(first / r(root + epsilon)))
    return r(p - moved), {"first_moment": first, "second_moment": second}


def _share(beta: float, conventions: Conventions, r: Arithmetic) -> float:
    """1 − β, a gradient's share in its moment."""
    if conventions.adam_share == "float64" or r.format == "float64":
        return 1.0 - beta
    return float(np.float32(1.0) - np.float32(beta))


def _correction(beta: float, count: int, conventions: Conventions, r: Arithmetic) -> float:
    """1 − βᵗ, the share of the zeros that the moments began with."""
    wide = conventions.adam_correction == "weights" and r.format == "float64"
    if conventions.adam_correction == "float64" or wide:
        return 1.0 - beta**count
    narrow = r.rounding.constant(beta, "float32")
    return r.number(1.0 - r.number(narrow**count))
