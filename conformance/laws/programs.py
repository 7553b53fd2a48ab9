"""A case as a value: a model, a recipe, and a program of verbs. Its `repr` makes it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fixtures.arrays import Array
from fixtures.layers import Dropout, Embedding, Layer, Positions, Shape
from fixtures.model import Batch, LossKind, Model, Window
from fixtures.recipe import FormatName, Recipe

Way = Literal["accumulate", "update", "gradients", "predict"]
MaskKind = Literal["none", "ragged", "empty"]
Damage = Literal["cut", "foreign", "missing"]
Target = Literal["same", "fresh", "used", "predicted", "skipped", "stopped"]


@dataclass(frozen=True)
class DrawnModel:
    """A model with its weights.

    With `exact` every row of a weight holds one value that is not zero, plus or minus one, and inputs are powers of
    two, so that the sums of a first forward and backward pass need no rounding, in whatever order they are added.

    Attributes:
        layers, sample, losses, token_level: as in `Model`; token ids go in where the first layer is an embedding.
        exact: whether weights and inputs are such values, or normally distributed ones.
        seed: of the weights and of nothing else.
        gain: weights but for biases are multiplied by 2 to its power.
    """

    layers: tuple[Layer, ...]
    sample: Shape
    losses: tuple[tuple[str, LossKind], ...]
    token_level: bool = False
    exact: bool = True
    seed: int = 0
    gain: int = 0

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

    def without_masks(self) -> DrawnModel:
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
                starts.append((name, rng.choice([-0.5, 0.0, 0.5], shape)))
        return tuple(starts)

    def _normal(self, model: Model) -> tuple[tuple[str, Array], ...]:
        weights = model.weights(self.seed)
        rng = np.random.default_rng([self.seed, 22])
        for name, value in weights.items():
            if name.endswith("weight"):
                weights[name] = np.ldexp(value, self.gain)
            if name.rsplit(".", 1)[1] in ("bias", "shift"):
                weights[name] = (0.25 * rng.standard_normal(value.shape)).astype(value.dtype)
        return tuple(weights.items())


def _tables(model: Model) -> set[str]:
    return {f"{path}.weight" for path, layer, _ in model.shapes() if isinstance(layer, Embedding | Positions)}


@dataclass(frozen=True)
class DrawnBatch:
    """One micro-batch of drawn data.

    Attributes:
        size: samples.
        mask: which positions of a token-level loss count: all, a few of each sequence, or none of any.
        heads: names of the heads that the batch brings targets for, empty for all.
        magnitude: inputs that are no ids are multiplied by 2 to its power.
        spoilt: what stands in the last element of such inputs, None for an ordinary value.
        constant: whether all inputs, ids too, are one value.
    """

    size: int
    seed: int = 0
    mask: MaskKind = "none"
    heads: tuple[str, ...] = ()
    magnitude: int = 0
    spoilt: float | None = None
    constant: bool = False

    def batch(self, drawn: DrawnModel) -> Batch:
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
            inputs = np.ldexp(rng.standard_normal(shape), self.magnitude)
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
                wide = np.float64 if heads[name].format == "float64" else np.float32
                targets[name] = (rng.integers(-8, 9, (*places, units)) / 4.0).astype(wide)
        if self.heads:
            targets = {name: target for name, target in targets.items() if name in self.heads}
        mask = None
        if drawn.token_level:
            kept = rng.integers(1, drawn.sample[0] + 1, self.size)
            kept = {"none": np.full(self.size, drawn.sample[0]), "ragged": kept, "empty": 0 * kept}[self.mask]
            mask = (np.arange(drawn.sample[0])[None, :] < kept[:, None]).astype(np.float32)
        return Batch(inputs if drawn.integer_inputs else inputs.astype(np.float32), targets, mask)


@dataclass(frozen=True)
class Spike:
    """A value in one element of one parameter's gradient; both places are shares of the whole, in [0, 1)."""

    value: float
    parameter: float
    element: float


@dataclass(frozen=True)
class Given:
    """The gradient of one micro-batch: `base` everywhere but in the spikes, and none for the parameter `missing`."""

    base: float
    spikes: tuple[Spike, ...] = ()
    missing: float | None = None

    def gradients(self, parameters: dict[str, Array]) -> dict[str, Array | None]:
        """A gradient for every parameter, in its shape and format."""
        given = {name: np.full_like(value, self.base) for name, value in parameters.items()}
        names = list(given)
        for spike in self.spikes:
            values = given[names[int(spike.parameter * len(names))]].reshape(-1)
            values[int(spike.element * values.size)] = spike.value
        gone = None if self.missing is None else names[int(self.missing * len(names))]
        return {name: None if name == gone else value for name, value in given.items()}


@dataclass(frozen=True)
class Accumulate:
    """Forward and backward of a micro-batch of a window with so many items."""

    micro: DrawnBatch
    items: int


@dataclass(frozen=True)
class Apply:
    """The end of a window; `flush` if it holds fewer micro-batches than the recipe says."""

    flush: bool = False


@dataclass(frozen=True)
class Train:
    """A whole window by `Trainer.update`; with `cut` its only micro-batch is cut into micro-batches of these sizes."""

    micros: tuple[DrawnBatch, ...]
    cut: tuple[int, ...] = ()


@dataclass(frozen=True)
class Feed:
    """Gradients from outside, so often in a row; the other fields as in `Trainer.feed`."""

    window: tuple[Given, ...]
    unscale_calls: int | None = None
    abandon: bool = False
    poison: Given | None = None
    times: int = 1


@dataclass(frozen=True)
class Gradients:
    """The gradients of a window, without an update."""

    micros: tuple[DrawnBatch, ...]


@dataclass(frozen=True)
class Predict:
    """An evaluation, of the average if `averaged`."""

    micro: DrawnBatch
    averaged: bool = False


@dataclass(frozen=True)
class Save:
    """Saves the run under a number."""

    slot: int = 0


@dataclass(frozen=True)
class Restore:
    """Loads what was saved last under a number, into the run itself or into another one that went on before."""

    slot: int = 0
    into: Target = "fresh"


@dataclass(frozen=True)
class RestoreDamaged:
    """Tries to load what was saved last under a number when one of its files is damaged so.

    Attributes:
        file: which one, as a share of all in [0, 1).
    """

    slot: int = 0
    damage: Damage = "cut"
    file: float = 0.0


@dataclass(frozen=True)
class StartAgain:
    """A new run in the same process, the one before left as it stands; with `onward` it begins with that one's weights.

    Every program begins with it, so that a run is looked at before anything happens.
    """

    onward: bool = False


@dataclass(frozen=True)
class TraceLayers:
    """A look at every layer in the pass of one micro-batch."""

    micro: DrawnBatch


@dataclass(frozen=True)
class CountBytes:
    """A count of the bytes that a micro-batch keeps between forward and backward."""

    micro: DrawnBatch


@dataclass(frozen=True)
class Break:
    """A micro-batch of the wrong width, whose forward raises, by one of the verbs that take one."""

    micro: DrawnBatch
    way: Way = "accumulate"


@dataclass(frozen=True)
class OpenScope:
    """The framework's own precision scope, opened and left between two verbs, by an exception if `raises`."""

    format: FormatName
    enabled: bool = True
    raises: bool = False


Verb = (
    Accumulate
    | Apply
    | Train
    | Feed
    | Gradients
    | Predict
    | Save
    | Restore
    | RestoreDamaged
    | StartAgain
    | TraceLayers
    | CountBytes
    | Break
    | OpenScope
)


@dataclass(frozen=True)
class DrawnCase:
    """A program of verbs on a model under a recipe."""

    drawn: DrawnModel
    recipe: Recipe
    program: tuple[Verb, ...]

    def window(self, micros: tuple[DrawnBatch, ...], cut: tuple[int, ...] = ()) -> Window:
        """The data of a window."""
        window = tuple(micro.batch(self.drawn) for micro in micros)
        return window[0].split(*cut) if cut else window
