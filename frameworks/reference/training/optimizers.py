"""Optimizers' update rules, every arithmetic operation rounded to the format that the weights are stored in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array, wider
from fixtures.recipe import SGD, Adagrad, Adam, AdamW, RMSprop
from frameworks.contract import Conventions
from frameworks.reference.core.rounding import Rounding

EPSILON = Conventions().adam_default_epsilon
"""Kingma & Ba's, arXiv:1412.6980."""

Slots = dict[str, Array]


@dataclass(frozen=True)
class Arithmetic:
    """Rounds arrays to a storage format, and hyperparameters to float32 or wider."""

    rounding: Rounding
    format: str

    def __call__(self, value: Array, terms: int = 1) -> Array:
        return self.rounding.round(value, self.format, terms)

    def number(self, value: float) -> float:
        """A hyperparameter as the update uses it."""
        return self.rounding.constant(value, wider(self.format, "float32"))

    def epsilon(self, value: float) -> float:
        """An epsilon, raised to the smallest positive value of the format where it would be rounded to zero."""
        return max(value, FORMATS[self.format].smallest_subnormal)


class UpdateRule:
    """The update rule of an optimizer under a framework's conventions, a method each decision.

    Args:
        decays: whether weight decay acts on the parameter.
    """

    def __init__(self, optimizer: Any, conventions: Conventions, r: Arithmetic, *, decays: bool = True) -> None:
        self.optimizer = optimizer
        self.conventions = conventions
        self.r = r
        self.decay = float(optimizer.weight_decay) if decays else 0.0

    @classmethod
    def slots(cls, optimizer: Any) -> tuple[str, ...]:
        """Names of the moments that the optimizer keeps for a parameter."""
        raise NotImplementedError

    @classmethod
    def start(cls, optimizer: Any, slot: str) -> float:
        """A moment before the first update."""
        del optimizer, slot
        return 0.0

    @classmethod
    def shape(cls, optimizer: Any, slot: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of a moment of a parameter of this shape, None where it has none."""
        del optimizer, slot
        return shape

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        """The new weight and the new moments.

        Args:
            p: the weight.
            g: its gradient.
            rate: the learning rate.
            count: number of this update, from 1.
        """
        return self.step(p, slots, self.decayed(p, self.ascent(g)), rate, count)

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        """The update by a gradient whose sign and decay are done."""
        raise NotImplementedError

    def ascent(self, g: Array) -> Array:
        """The gradient, turned round to maximize."""
        return -g if self.optimizer.maximize else g

    def decayed(self, p: Array, g: Array) -> Array:
        """The gradient with coupled decay."""
        return self.r(g + self.r(self.r.number(self.decay) * p)) if self.decay else g


class SGDRule(UpdateRule):
    """SGD with momentum, in either convention; Sutskever et al. 2013 for Nesterov's."""

    @classmethod
    def slots(cls, optimizer: SGD) -> tuple[str, ...]:
        return ("momentum",) if optimizer.momentum else ()

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r = self.r
        rate = r.number(rate)
        if not self.optimizer.momentum:
            return r(p - r(rate * g)), {}
        decayed = r(r.number(self.optimizer.momentum) * slots["momentum"])
        joining = self.joining(g, count)
        if self.conventions.momentum_rate == "inside":
            velocity = r(decayed - r(rate * joining))
            return r(p + self.ahead(velocity, -r(rate * g))), {"momentum": velocity}
        velocity = r(decayed + joining)
        return r(p - r(rate * self.ahead(velocity, g))), {"momentum": velocity}

    def joining(self, g: Array, count: int) -> Array:
        """What of the gradient joins the velocity: all of the first one."""
        undampened = not self.optimizer.dampening or count == 1
        return g if undampened else self.r(self.r.number(1.0 - self.optimizer.dampening) * g)

    def ahead(self, velocity: Array, g: Array) -> Array:
        """What moves the weight: the velocity, or Nesterov's look ahead of it."""
        if not self.optimizer.nesterov:
            return velocity
        return self.r(g + self.r(self.r.number(self.optimizer.momentum) * velocity))


class AdamRule(UpdateRule):
    """Adam, with AMSGrad's largest second moment.

    Source: Kingma & Ba 2015, algorithm 1 and the end of section 2; Reddi, Kale & Kumar 2018, algorithm 2.
    """

    @classmethod
    def slots(cls, optimizer: Adam | AdamW) -> tuple[str, ...]:
        return ("first_moment", "second_moment", *(("largest_second_moment",) if optimizer.amsgrad else ()))

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r, betas = self.r, (self.optimizer.beta1, self.optimizer.beta2)
        default = self.conventions.adam_default_epsilon
        epsilon = r.epsilon(default if self.optimizer.epsilon is None else self.optimizer.epsilon)
        shares = [self.share(beta) for beta in betas]
        first = r(r(r.number(betas[0]) * slots["first_moment"]) + r(r.number(shares[0]) * g))
        second = r(r(r.number(betas[1]) * slots["second_moment"]) + r(r(r.number(shares[1]) * g) * g))
        moved: Slots = {"first_moment": first, "second_moment": second}
        moving = self.moving(first, g, count)
        one, two = (self.correction(beta, count) for beta in betas)
        if self.optimizer.amsgrad:
            second, two = self.largest(slots["largest_second_moment"], second, two, moved)
        if self.conventions.adam_epsilon == "inside":
            way = r(r(r.number(rate * np.sqrt(two) / one) * moving) / r(r(np.sqrt(second)) + epsilon))
        else:
            root = r(r(np.sqrt(second)) / r.number(float(np.sqrt(two))))
            way = r(r.number(rate / one) * r(moving / r(root + epsilon)))
        return r(p - way), moved

    def moving(self, first: Array, g: Array, count: int) -> Array:
        """What moves the weight, before the correction of the first moment."""
        del g, count
        return first

    def largest(self, former: Array, second: Array, correction: float, moved: Slots) -> tuple[Array, float]:
        """AMSGrad's second moment and the correction that it still needs: of the moments, or none of corrected ones."""
        corrected = self.conventions.amsgrad == "corrected"
        largest = np.maximum(former, self.r(second / self.r.number(correction)) if corrected else second)
        moved["largest_second_moment"] = largest
        return largest, 1.0 if corrected else correction

    def share(self, beta: float) -> float:
        """1 − β, a gradient's share in its moment."""
        if self.conventions.adam_share == "float64" or self.r.format == "float64":
            return 1.0 - beta
        return float(np.float32(1.0) - np.float32(beta))

    def correction(self, beta: float, count: int) -> float:
        """1 − βᵗ, the share of the zeros that the moments began with."""
        wide = self.conventions.adam_correction == "weights" and self.r.format == "float64"
        if self.conventions.adam_correction == "float64" or wide:
            return 1.0 - beta**count
        narrow = self.r.rounding.constant(beta, "float32")
        return self.r.number(1.0 - self.r.number(narrow**count))


class AdamWRule(AdamRule):
    """Adam with decoupled decay; Loshchilov & Hutter 2019, algorithm 2."""

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        return self.step(self.shrunk(p, rate), slots, self.ascent(g), rate, count)

    def shrunk(self, p: Array, rate: float) -> Array:
        """The weight after decoupled decay."""
        return self.r(p * self.r.number(1.0 - rate * self.decay))


class AdagradRule(UpdateRule):
    """Adagrad; Duchi, Hazan & Singer 2011, figure 1 with a diagonal matrix."""

    @classmethod
    def slots(cls, optimizer: Adagrad) -> tuple[str, ...]:
        del optimizer
        return ("squares",)

    @classmethod
    def start(cls, optimizer: Adagrad, slot: str) -> float:
        del slot
        return optimizer.initial

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r = self.r
        squares = r(slots["squares"] + r(g * g))
        root = root_of(r, squares, self.optimizer.epsilon, self.conventions.adagrad_epsilon)
        return r(p - r(r.number(self.slowed(rate, count)) * r(g / root))), {"squares": squares}

    def slowed(self, rate: float, count: int) -> float:
        """The rate of the update of this number, from 1."""
        return rate / (1.0 + (count - 1) * self.optimizer.rate_decay)


class RMSpropRule(UpdateRule):
    """RMSprop; Hinton 2012, lecture 6e; Graves, arXiv:1308.0850, equations 38 to 45."""

    @classmethod
    def slots(cls, optimizer: RMSprop) -> tuple[str, ...]:
        more = {"gradients": optimizer.centred, "momentum": optimizer.momentum > 0}
        return ("squares", *(name for name, wanted in more.items() if wanted))

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r, moved = self.r, {"squares": self.mean(slots["squares"], self.r(g * g))}
        variance = moved["squares"]
        if self.optimizer.centred:
            moved["gradients"] = self.mean(slots["gradients"], g)
            variance = r(variance - r(moved["gradients"] * moved["gradients"]))
        way = r(g / root_of(r, variance, self.optimizer.epsilon, self.conventions.rmsprop_epsilon))
        if not self.optimizer.momentum:
            return r(p - r(r.number(rate) * way)), moved
        decayed = r(r.number(self.optimizer.momentum) * slots["momentum"])
        inside = self.conventions.rmsprop_rate == "inside"
        moved["momentum"] = r(decayed + (r(r.number(rate) * way) if inside else way))
        return r(p - (moved["momentum"] if inside else r(r.number(rate) * moved["momentum"]))), moved

    def mean(self, former: Array, value: Array) -> Array:
        """A decaying mean that takes in a value."""
        r, decay = self.r, self.optimizer.decay
        return r(r(r.number(decay) * former) + r(r.number(1.0 - decay) * value))


def root_of(r: Arithmetic, squares: Array, epsilon: float, place: str) -> Array:
    """The root that an update divides by, with epsilon "outside" or "inside" of it."""
    if place == "inside":
        return r(np.sqrt(r(squares + r.epsilon(epsilon))))
    return r(r(np.sqrt(squares)) + r.epsilon(epsilon))
