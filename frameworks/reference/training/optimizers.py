"""Update rules of the optimizers; the result of every operation is rounded to the storage format of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fixtures.arrays import FORMATS, Array, format_of, wider
from fixtures.optimizers import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, Optimizer, RMSprop
from fixtures.recipe import Recipe
from fixtures.schedules import OneCycle
from frameworks.contract import Conventions
from frameworks.reference.core.rounding import Rounding

EPSILON = Conventions().adam_default_epsilon
"""Adam's epsilon in Kingma & Ba, arXiv:1412.6980."""
RMS_RATE = 0.2
"""Typical RMS of AdamW's updates; Liu et al., arXiv:2502.16982, section 2.2."""

Shape = tuple[int, ...]
Slots = dict[str, Array]
"""The moments of a parameter, by name."""


@dataclass(frozen=True)
class Arithmetic:
    """Rounds arrays to a storage format, and hyperparameters to that format or float32, whichever is wider."""

    rounding: Rounding
    format: str

    def __call__(self, value: Array, terms: int = 1) -> Array:
        return self.rounding.round(value, self.format, terms)

    def number(self, value: float) -> float:
        """Returns a hyperparameter, rounded to the storage format or float32, whichever is wider."""
        return self.rounding.constant(value, wider(self.format, "float32"))

    def epsilon(self, value: float) -> float:
        """Returns an epsilon, or the smallest positive value of the format if that is larger."""
        return max(value, FORMATS[self.format].smallest_subnormal)


class UpdateRule:
    """The update rule of an optimizer under a framework's conventions; `r` rounds its results. Faults override methods.

    Args:
        decays: True if weight decay acts on the parameter.
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
        """Initial value of a moment."""
        del optimizer, slot
        return 0.0

    @classmethod
    def shape(cls, optimizer: Any, slot: str, shape: Shape) -> Shape | None:
        """The shape of a moment for a parameter of this shape; None if the parameter has no such moment."""
        del optimizer, slot
        return shape

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        """Returns the new parameter and its new moments.

        Args:
            p: the parameter; its moments, in `slots`, have the shapes of `shape`.
            g: its gradient, of the same shape.
            rate: the learning rate.
            count: number of this update, counted from 1.
        """
        return self.step(p, slots, self.add_decay(p, self.ascent(g)), rate, count)

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        """Returns the same for a gradient to which `ascent` and `add_decay` were applied."""
        raise NotImplementedError

    def ascent(self, g: Array) -> Array:
        """The gradient, negated if the optimizer maximizes."""
        return -g if self.optimizer.maximize else g

    def add_decay(self, p: Array, g: Array) -> Array:
        """The gradient plus coupled weight decay."""
        return self.r(g + self.r(self.r.number(self.decay) * p)) if self.decay else g


class SGDRule(UpdateRule):
    """SGD; the velocity may contain the learning rate (`momentum_rate`). Nesterov: Sutskever et al. 2013."""

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
        """The term added to the velocity: the first gradient, later gradients times 1 − dampening."""
        undampened = not self.optimizer.dampening or count == 1
        return g if undampened else self.r(self.r.number(1.0 - self.optimizer.dampening) * g)

    def ahead(self, velocity: Array, g: Array) -> Array:
        """The direction of the update: the velocity, or Nesterov's look-ahead."""
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
        direction = self.moving(first, g, count)
        of_first, of_second = (self.correction(beta, count) for beta in betas)
        if self.optimizer.amsgrad:
            second, of_second = self.largest(slots["largest_second_moment"], second, of_second, moved)
        if self.conventions.adam_epsilon == "inside":
            factor = r.number(rate * np.sqrt(of_second) / of_first)
            update = r(r(factor * direction) / r(r(np.sqrt(second)) + epsilon))
        else:
            root = r(r(np.sqrt(second)) / r.number(float(np.sqrt(of_second))))
            update = r(r.number(rate / of_first) * r(direction / r(root + epsilon)))
        return r(p - update), moved

    def moving(self, first: Array, g: Array, count: int) -> Array:
        """The direction of the update, before the bias correction of the first moment."""
        del g, count
        return first

    def largest(self, former: Array, second: Array, correction: float, moved: Slots) -> tuple[Array, float]:
        """AMSGrad's largest second moment, and the bias correction to apply to it: 1 if it was corrected already."""
        corrected = self.conventions.amsgrad == "corrected"
        largest = np.maximum(former, self.r(second / self.r.number(correction)) if corrected else second)
        moved["largest_second_moment"] = largest
        return largest, 1.0 if corrected else correction

    def share(self, beta: float) -> float:
        """1 − β, the weight of a new gradient in its moment."""
        if self.conventions.adam_share == "float64" or self.r.format == "float64":
            return 1.0 - beta
        return float(np.float32(1.0) - np.float32(beta))

    def correction(self, beta: float, count: int) -> float:
        """1 − βᵗ, the divisor of the bias correction for moments that start at zero."""
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
        """The weight after decoupled weight decay."""
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
        return r(p - r(r.number(self.decay_learning_rate(rate, count)) * r(g / root))), {"squares": squares}

    def decay_learning_rate(self, rate: float, count: int) -> float:
        """The learning rate of update number `count`, counted from 1."""
        return rate / (1.0 + (count - 1) * self.optimizer.rate_decay)


class RMSpropRule(UpdateRule):
    """RMSprop; Hinton 2012, lecture 6e; Graves, arXiv:1308.0850, equations 38 to 45."""

    @classmethod
    def slots(cls, optimizer: RMSprop) -> tuple[str, ...]:
        centred = ("gradients",) if optimizer.centred else ()
        return ("squares", *centred, *(("momentum",) if optimizer.momentum > 0 else ()))

    def step(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r, moved = self.r, {"squares": self.mean(slots["squares"], self.r(g * g))}
        variance = moved["squares"]
        if self.optimizer.centred:
            moved["gradients"] = self.mean(slots["gradients"], g)
            variance = r(variance - r(moved["gradients"] * moved["gradients"]))
        direction = r(g / root_of(r, variance, self.optimizer.epsilon, self.conventions.rmsprop_epsilon))
        if not self.optimizer.momentum:
            return r(p - r(r.number(rate) * direction)), moved
        decayed = r(r.number(self.optimizer.momentum) * slots["momentum"])
        if self.conventions.rmsprop_rate == "inside":
            moved["momentum"] = r(decayed + r(r.number(rate) * direction))
            return r(p - moved["momentum"]), moved
        moved["momentum"] = r(decayed + direction)
        return r(p - r(r.number(rate) * moved["momentum"])), moved

    def mean(self, former: Array, value: Array) -> Array:
        """The exponential moving average after a new value."""
        r, decay = self.r, self.optimizer.decay
        return r(r(r.number(decay) * former) + r(r.number(1.0 - decay) * value))


def root_of(r: Arithmetic, squares: Array, epsilon: float, position: str) -> Array:
    """The root that an update divides by, with epsilon added "outside" or "inside" of it."""
    if position == "inside":
        return r(np.sqrt(r(squares + r.epsilon(epsilon))))
    return r(r(np.sqrt(squares)) + r.epsilon(epsilon))


class AdafactorRule(UpdateRule):
    """Adafactor; Shazeer & Stern 2018, algorithms 4 to 6. Of more than two dimensions, the last two are factored."""

    optimizer: Adafactor

    @classmethod
    def slots(cls, optimizer: Adafactor) -> tuple[str, ...]:
        del optimizer
        return ("rows", "columns", "squares")

    @classmethod
    def shape(cls, optimizer: Adafactor, slot: str, shape: Shape) -> Shape | None:
        if len(shape) < 2 or sorted(shape)[-2] < optimizer.smallest:
            return shape if slot == "squares" else None
        return {"rows": shape[:-1], "columns": (*shape[:-2], shape[-1])}.get(slot)

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        r, acts = self.r, self.conventions.adafactor_decay
        shrunk = r(p * r.number(1.0 - rate * self.decay)) if self.decay and acts != "whole" else p
        scale = self.scale(shrunk if acts == "first" else p)
        moved = self.statistics(slots, self.ascent(g), float(count) ** -self.optimizer.decay)
        direction = self.clip(r(self.ascent(g) / self.root(moved)))
        update = r(r.number(self.cap_rate(rate, count) * scale) * direction)
        if self.decay and acts == "whole":
            update = r(update + r(r.number(self.decay) * p))
        return r(shrunk - update), moved

    def statistics(self, slots: Mapping[str, Array], g: Array, share: float) -> Slots:
        """The moving averages of squares after a new gradient with the weight `share`."""
        squares = self.r(g * g)
        if self.conventions.adafactor_epsilon == "added":
            squares = self.r(squares + self.epsilon)
        if "squares" in slots:
            return {"squares": self.mean(slots["squares"], squares, share)}
        axes = {"rows": -1, "columns": -2}
        return {slot: self.mean(slots[slot], self.average(squares, axis), share) for slot, axis in axes.items()}

    @property
    def epsilon(self) -> float:
        """Epsilon 1, which is added to squared gradients or is the floor of their root."""
        epsilon = self.optimizer.epsilon1
        if epsilon is None:
            epsilon = self.conventions.adafactor_default_epsilon
        return self.r.epsilon(2.0 * format_of(self.r.format).unit_roundoff if epsilon is None else epsilon)

    def root(self, means: Mapping[str, Array]) -> Array:
        """The square root of the estimated second moment."""
        r, floor = self.r, self.epsilon if self.conventions.adafactor_epsilon == "floor" else 0.0
        estimate = means.get("squares")
        if estimate is None:
            rows, columns = means["rows"], means["columns"][..., np.newaxis, :]
            sizes = np.maximum(self.average(rows, -1), floor)[..., np.newaxis]
            estimate = r(r(rows / sizes)[..., np.newaxis] * columns)
        return np.maximum(r(np.sqrt(estimate)), floor)

    def clip(self, update: Array) -> Array:
        """The update, scaled down so that its RMS is at most the threshold."""
        return self.r(update / max(1.0, self.rms(update) / self.optimizer.threshold))

    def scale(self, p: Array) -> float:
        """The factor of a parameter's update: the RMS of the parameter, at least epsilon 2."""
        return max(self.optimizer.epsilon2, self.rms(p))

    def cap_rate(self, rate: float, count: int) -> float:
        """The learning rate of update number `count`, counted from 1, after the cap of the relative step size."""
        capped = self.optimizer.relative_step and self.conventions.adafactor_rate == "capped"
        return min(rate, 1.0 / math.sqrt(count)) if capped else rate

    def mean(self, former: Array, value: Array, share: float) -> Array:
        """The moving average after a new value with the weight `share`."""
        r = self.r
        return r(r(r.number(1.0 - share) * former) + r(r.number(share) * value))

    def average(self, values: Array, axis: int) -> Array:
        """The mean along an axis, which the result lacks."""
        return self.r(values.mean(axis=axis), values.shape[axis])

    def rms(self, values: Array) -> float:
        """The root mean square of an array."""
        return float(self.r(np.sqrt(self.r(np.mean(values * values), values.size))))


class NonMatrixRule(AdamRule):
    """Muon's Adam for parameters that are not matrices, with Nesterov's look-ahead if the conventions say so.

    Source: Dozat, "Incorporating Nesterov momentum into Adam" (2016).
    """

    ahead = False

    def moving(self, first: Array, g: Array, count: int) -> Array:
        if not self.ahead:
            return first
        beta, r = self.optimizer.beta1, self.r
        ratio = self.correction(beta, count) / self.correction(beta, count + 1)
        return r(r(r.number(beta * ratio) * first) + r(r.number(1.0 - beta) * g))


class MuonRule(UpdateRule):
    """Muon; Jordan 2024; Liu et al. 2025, section 2.2, for the rate. Matrices are (inputs, outputs)."""

    optimizer: Muon

    @classmethod
    def slots(cls, optimizer: Muon) -> tuple[str, ...]:
        del optimizer
        return ("momentum", *AdamRule.slots(Adam()))

    @classmethod
    def shape(cls, optimizer: Muon, slot: str, shape: Shape) -> Shape | None:
        del optimizer
        return shape if (slot == "momentum") == (len(shape) == 2) else None

    def __call__(self, p: Array, slots: Mapping[str, Array], g: Array, rate: float, count: int) -> tuple[Array, Slots]:
        if "momentum" not in slots:
            rule = NonMatrixRule(Adam(epsilon=None), self.conventions, self.r)
            rule.ahead = self.optimizer.nesterov and self.conventions.muon_nesterov == "corrected"
            return rule(p, slots, g, rate, count)
        r = self.r
        velocity = r(r(r.number(self.optimizer.momentum) * slots["momentum"]) + g)
        update = self.orthogonal(self.ahead(velocity, g, count))
        decayed = r(p * r.number(1.0 - rate * self.decay)) if self.decay else p
        return r(decayed - r(r.number(rate * self.factor(p.shape)) * update)), {"momentum": velocity}

    def ahead(self, velocity: Array, g: Array, count: int) -> Array:
        """The matrix to orthogonalise: the velocity, or Nesterov's look-ahead. Its norm has no effect."""
        if not self.optimizer.nesterov:
            return velocity
        r, share = self.r, self.optimizer.momentum
        if self.conventions.muon_nesterov == "corrected":
            share *= (1.0 - share**count) / (1.0 - share ** (count + 1))
        return r(g + r(r.number(share) * velocity))

    def orthogonal(self, matrix: Array) -> Array:
        """The matrix after the Newton-Schulz iterations, with singular values near 1."""
        if matrix.shape[0] > matrix.shape[1]:
            return self.orthogonal(matrix.T).T
        x = self.normalise(self.round(matrix))
        for _ in range(self.optimizer.steps):
            x = self.iterate(x)
        return x

    def normalise(self, matrix: Array) -> Array:
        """The matrix divided by its Frobenius norm, so that no singular value exceeds 1."""
        norm = self.round(np.sqrt(self.round(np.sum(matrix * matrix), matrix.size)))
        epsilon = self.conventions.muon_default_epsilon
        added = self.conventions.muon_epsilon == "added"
        return self.round(matrix / (norm + epsilon if added else np.maximum(norm, epsilon)))

    def iterate(self, x: Array) -> Array:
        """One Newton-Schulz iteration of fifth order."""
        a, b, c = self.optimizer.coefficients
        gram = self.product(x, x.T)
        factor = self.round(self.round(b * gram) + self.round(c * self.product(gram, gram)))
        return self.round(self.round(a * x) + self.product(factor, x))

    def factor(self, shape: Shape) -> float:
        """The factor of the learning rate for a matrix of this shape."""
        match self.optimizer.adjustment:
            case "rms":
                return RMS_RATE * math.sqrt(max(shape))
            case "width":
                return math.sqrt(max(1.0, shape[1] / shape[0]))
            case _:
                return 1.0

    @property
    def format(self) -> str:
        """The computing format of the iteration."""
        return self.r.format if self.conventions.muon_products == "weights" else "bfloat16"

    def round(self, value: Array, terms: int = 1) -> Array:
        """A value rounded to the iteration's format."""
        return self.r.rounding.round(np.asarray(value), self.format, terms)

    def product(self, a: Array, b: Array) -> Array:
        """A matrix product rounded to the iteration's format; low formats accumulate in a wider one."""
        return self.round(a @ b, a.shape[1] if self.format == "float32" else 1)


RULES: Mapping[type[Optimizer], type[UpdateRule]] = {
    SGD: SGDRule,
    Adam: AdamRule,
    AdamW: AdamWRule,
    Adagrad: AdagradRule,
    RMSprop: RMSpropRule,
    Adafactor: AdafactorRule,
    Muon: MuonRule,
}
"""The update rule of each optimizer."""


def optimizer_of(recipe: Recipe, group: int, applied: int) -> Optimizer:
    """The optimizer of a group after `applied` updates; a one-cycle schedule may change its momentum or beta1."""
    optimizer, schedule = recipe.of_groups[group], recipe.schedule
    momentum = schedule.momentum(applied) if isinstance(schedule, OneCycle) else None
    if momentum is None:
        return optimizer
    changed: dict[str, Any] = {"momentum" if hasattr(optimizer, "momentum") else "beta1": momentum}
    return replace(optimizer, **changed)
