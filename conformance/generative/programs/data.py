"""Generated models and micro-batches as values, from which weights and data are built."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Dropout, Embedding, Layer, Positions, Shape
from fixtures.model import Batch, LossKind, Model

MaskKind = Literal["none", "ragged", "holes", "empty"]
BEYOND_FLOAT32 = 2.0**-30
"""A value that float32 cannot add to a quarter, but float64 can."""


@dataclass(frozen=True)
class GeneratedModel:
    """A model with its weights.

    With `exact` every row of a weight holds one value that is not zero, plus or minus one, and inputs are powers of
    two, so that the sums of a first forward and backward pass need no rounding, in whatever order they are added.

    Attributes:
        layers, sample, losses, token_level: as in `Model`; token ids go in where the first layer is an embedding.
        exact: whether weights and inputs are such values, or normally distributed ones.
        seed: of the weights and of nothing else.
        gain: weights but for biases are multiplied by 2 to its power.
        offset: added to every bias and shift, so that values are large against what they differ by.
        shift: added to every input that is no id.
    """

    layers: tuple[Layer, ...]
    sample: Shape
    losses: tuple[tuple[str, LossKind], ...]
    token_level: bool = False
    exact: bool = True
    seed: int = 0
    gain: int = 0
    offset: float = 0.0
    shift: float = 0.0

    @property
    def integer_inputs(self) -> bool:
        """Whether token ids go in."""
        return isinstance(self.layers[0], Embedding)

    @cached_property
    def model(self) -> Model:
        """The model with its first weights."""
        model = Model(
            "drawn",
            self.layers,
            self.sample,
            self.losses,
            integer_inputs=self.integer_inputs,
            token_level=self.token_level,
        )
        return replace(model, starts=self._signed_rows(model) if self.exact else self._normal(model))

    @property
    def values(self) -> int:
        """Values of all parameters."""
        return sum(math.prod(shape) for shape in self.model.parameter_shapes().values())

    @property
    def longest_sum(self) -> int:
        """Terms of the longest sum that a product with a weight is, forward or backward."""
        tables, shapes = _tables(self.model), self.model.parameter_shapes().items()
        weights = [shape for name, shape in shapes if name.endswith("weight") and name not in tables]
        return max(max(math.prod(shape[:-1]), shape[-1]) for shape in weights)

    def without_masks(self) -> GeneratedModel:
        """The model with dropout that drops nothing."""
        return replace(self, layers=tuple(Dropout(0.0) if isinstance(la, Dropout) else la for la in self.layers))

    def _signed_rows(self, model: Model) -> tuple[tuple[str, Array], ...]:
        rng = np.random.default_rng([self.seed, 21])
        starts: list[tuple[str, Array]] = []
        tables = _tables(model)
        for name, shape in model.parameter_shapes().items():
            kind = name.rsplit(".", 1)[1]
            if kind == "weight":
                columns = shape[-1]
                rows = int(np.prod(shape[:-1]))
                places = rng.permutation(rows) % columns
                chosen = np.ones((rows, columns)) if name in tables else places[:, None] == np.arange(columns)
                starts.append((name, np.where(chosen, rng.choice([-1.0, 1.0], (rows, columns)), 0.0)))
                starts[-1] = name, np.ldexp(starts[-1][1], self.gain).reshape(shape)
            elif kind == "bias":
                bias = rng.choice([-0.5, -0.0, 0.0, 0.5], shape)
                starts.append((name, bias + self.offset if self.offset else bias))
        return tuple(starts)

    def _normal(self, model: Model) -> tuple[tuple[str, Array], ...]:
        weights = model.weights(self.seed)
        rng = np.random.default_rng([self.seed, 22])
        for name, value in weights.items():
            if name.endswith("weight"):
                weights[name] = np.ldexp(value, self.gain)
            if name.rsplit(".", 1)[1] in ("bias", "shift"):
                weights[name] = (0.25 * rng.standard_normal(value.shape) + self.offset).astype(value.dtype)
        return tuple(weights.items())


def _tables(model: Model) -> set[str]:
    return {f"{path}.weight" for path, layer, _ in model.shapes() if isinstance(layer, Embedding | Positions)}


@dataclass(frozen=True)
class GeneratedBatch:
    """One micro-batch of drawn data.

    Attributes:
        size: samples.
        mask: which positions of a token-level loss count: all, the first few of each sequence, any, or none at all.
        heads: names of the heads that the batch brings targets for, empty for all.
        magnitude: inputs that are no ids are multiplied by 2 to its power.
        spoilt: value of the last element of such inputs, None for an ordinary value.
        constant: whether all inputs, ids too, are one value.
    """

    size: int
    seed: int = 0
    mask: MaskKind = "none"
    heads: tuple[str, ...] = ()
    magnitude: int = 0
    spoilt: float | None = None
    constant: bool = False

    def items(self, drawn: GeneratedModel) -> int:
        """Its number of items."""
        return self.batch(drawn).items if drawn.token_level else self.size

    def batch(self, drawn: GeneratedModel) -> Batch:
        """The data for a model."""
        rng = np.random.default_rng([self.seed, self.size, 23])
        shape = (self.size, *drawn.sample)
        first = drawn.layers[0]
        if isinstance(first, Embedding):
            inputs: Array = rng.integers(0, first.entries, shape)
            inputs.reshape(-1)[[0, -1]] = 0, first.entries - 1
        elif drawn.exact:
            inputs = np.ldexp(rng.choice([-1.0, 1.0], shape), rng.integers(-1, 2, shape) + self.magnitude)
        else:
            inputs = np.ldexp(rng.standard_normal(shape), self.magnitude) + drawn.shift
        if self.constant:
            inputs = np.full_like(inputs, inputs.reshape(-1)[-1])
        if self.spoilt is not None and not drawn.integer_inputs:
            inputs.reshape(-1)[-1] = self.spoilt
        heads = {head.name: head for head in drawn.model.heads.heads}
        places = (self.size, drawn.sample[0]) if drawn.token_level else (self.size,)
        targets: dict[str, Array] = {}
        for name, kind in drawn.losses:
            units = heads[name].units
            if kind == "cross_entropy":
                targets[name] = rng.integers(0, units, places)
            else:
                quarters = rng.integers(-8, 9, (*places, units)) / 4.0
                wide = heads[name].format == "float64"
                targets[name] = quarters + BEYOND_FLOAT32 if wide and self.seed % 2 else quarters
                targets[name] = targets[name].astype(np.float64 if wide else np.float32)
        if self.heads:
            targets = {name: target for name, target in targets.items() if name in self.heads}
        mask = None
        if drawn.token_level:
            lengths = rng.integers(1, drawn.sample[0] + 1, self.size)
            lengths = {"ragged": lengths, "empty": 0 * lengths}.get(self.mask, np.full(self.size, drawn.sample[0]))
            mask = (np.arange(drawn.sample[0])[None, :] < lengths[:, None]).astype(np.float32)
            if self.mask == "holes":
                mask *= rng.integers(0, 2, mask.shape)
                mask[-1, -1] = 1.0
        return Batch(inputs if drawn.integer_inputs else inputs.astype(np.float32), targets, mask)
