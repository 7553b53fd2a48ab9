"""Update rules that treat a matrix as one: Adafactor's statistics of rows and columns, Muon's orthogonal updates."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array, format_of
from fixtures.recipe import Adafactor, Adam, Muon
from frameworks.reference.training.optimizers import AdamRule, Slots, UpdateRule

Shape = tuple[int, ...]
RMS_RATE = 0.2
"""The RMS of AdamW's updates in practice; Liu et al., arXiv:2502.16982, section 2.2."""


class AdafactorRule(UpdateRule):
    """Adafactor; Shazeer & Stern 2018, algorithms 4 to 6. Of more than two dimensions the last two are factored."""

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
        update = self.clipped(r(self.ascent(g) / self.root(moved)))
        way = r(r.number(self.capped(rate, count) * scale) * update)
        if self.decay and acts == "whole":
            way = r(way + r(r.number(self.decay) * p))
        return r(shrunk - way), moved

    def statistics(self, slots: Mapping[str, Array], g: Array, share: float) -> Slots:
        """The means after they took in a gradient with a share."""
        squares = self.r(g * g)
        if self.conventions.adafactor_epsilon == "added":
            squares = self.r(squares + self.epsilon)
        if "squares" in slots:
            return {"squares": self.mean(slots["squares"], squares, share)}
        axes = {"rows": -1, "columns": -2}
        return {slot: self.mean(slots[slot], self.average(squares, axis), share) for slot, axis in axes.items()}

    @property
    def epsilon(self) -> float:
        """The epsilon of squares."""
        given = self.optimizer.epsilon1
        wanted = self.conventions.adafactor_default_epsilon if given is None else given
        return self.r.epsilon(2.0 * format_of(self.r.format).unit_roundoff if wanted is None else wanted)

    def root(self, means: Mapping[str, Array]) -> Array:
        """The root of the estimated second moment."""
        r, floor = self.r, self.epsilon if self.conventions.adafactor_epsilon == "floor" else 0.0
        estimate = means.get("squares")
        if estimate is None:
            rows, columns = means["rows"], means["columns"][..., np.newaxis, :]
            sizes = np.maximum(self.average(rows, -1), floor)[..., np.newaxis]
            estimate = r(r(rows / sizes)[..., np.newaxis] * columns)
        return np.maximum(r(np.sqrt(estimate)), floor)

    def clipped(self, update: Array) -> Array:
        """The update with an RMS of at most the threshold."""
        return self.r(update / max(1.0, self.rms(update) / self.optimizer.threshold))

    def scale(self, p: Array) -> float:
        """The RMS of a parameter as it counts."""
        return max(self.optimizer.epsilon2, self.rms(p))

    def capped(self, rate: float, count: int) -> float:
        """The relative step size of the update of this number, from 1."""
        capped = self.optimizer.relative_step and self.conventions.adafactor_rate == "capped"
        return min(rate, 1.0 / math.sqrt(count)) if capped else rate

    def mean(self, former: Array, value: Array, share: float) -> Array:
        """A mean that takes in a value with a share."""
        r = self.r
        return r(r(r.number(1.0 - share) * former) + r(r.number(share) * value))

    def average(self, values: Array, axis: int) -> Array:
        """The mean along an axis."""
        return self.r(values.mean(axis=axis), values.shape[axis])

    def rms(self, values: Array) -> float:
        """The root of the mean of squares."""
        return float(self.r(np.sqrt(self.r(np.mean(values * values), values.size))))


class NonMatrixRule(AdamRule):
    """Adam of parameters that are no matrices, with Nesterov's look ahead where the conventions say so.

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
        """What is made orthogonal: the velocity, or Nesterov's look ahead of it. Its length does not matter."""
        if not self.optimizer.nesterov:
            return velocity
        r, share = self.r, self.optimizer.momentum
        if self.conventions.muon_nesterov == "corrected":
            share *= (1.0 - share**count) / (1.0 - share ** (count + 1))
        return r(g + r(r.number(share) * velocity))

    def orthogonal(self, matrix: Array) -> Array:
        """The matrix with singular values near 1."""
        if matrix.shape[0] > matrix.shape[1]:
            return self.orthogonal(matrix.T).T
        x = self.normalised(self.rounded(matrix))
        for _ in range(self.optimizer.steps):
            x = self.iterated(x)
        return x

    def normalised(self, matrix: Array) -> Array:
        """The matrix by its Frobenius norm, so that no singular value is above 1."""
        norm = self.rounded(np.sqrt(self.rounded(np.sum(matrix * matrix), matrix.size)))
        epsilon = self.conventions.muon_default_epsilon
        added = self.conventions.muon_epsilon == "added"
        return self.rounded(matrix / (norm + epsilon if added else np.maximum(norm, epsilon)))

    def iterated(self, x: Array) -> Array:
        """One iteration of Newton and Schulz, of the fifth order."""
        a, b, c = self.optimizer.coefficients
        gram = self.product(x, x.T)
        factor = self.rounded(self.rounded(b * gram) + self.rounded(c * self.product(gram, gram)))
        return self.rounded(self.rounded(a * x) + self.product(factor, x))

    def factor(self, shape: Shape) -> float:
        """By how much the rate of a matrix is adjusted."""
        match self.optimizer.adjustment:
            case "rms":
                return RMS_RATE * math.sqrt(max(shape))
            case "width":
                return math.sqrt(max(1.0, shape[1] / shape[0]))
            case _:
                return 1.0

    @property
    def format(self) -> str:
        """The format that the iteration computes in."""
        return self.r.format if self.conventions.muon_products == "weights" else "bfloat16"

    def rounded(self, value: Array, terms: int = 1) -> Array:
        """A value in the iteration's format."""
        return self.r.rounding.round(np.asarray(value), self.format, terms)

    def product(self, a: Array, b: Array) -> Array:
        """A product of matrices in the iteration's format, whose sums are wider where the format is low."""
        return self.rounded(a @ b, a.shape[1] if self.format == "float32" else 1)
