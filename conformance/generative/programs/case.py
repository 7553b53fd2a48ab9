"""A case as a value: a model with data, a recipe, and a program of verbs. Evaluating its `repr` recreates it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Dropout, Embedding, Layer, LossKind, Model, Positions, Shape, Window
from fixtures.recipe import DynamicScaling, FormatName, Offload, Ranks, Recipe

MaskKind = Literal["none", "ragged", "holes", "empty"]
BEYOND_FLOAT32 = 2.0**-30
"""A value that is lost when float32 adds it to 0.25, and kept by float64."""


@dataclass(frozen=True)
class GeneratedModel:
    """A model with its weights.

    With `exact`, every row of a weight has one nonzero value, plus or minus one, and inputs are powers of two. The sums
    of the first forward and backward pass then need no rounding, whatever the order of addition.

    Attributes:
        layers, sample, losses, token_level: as in `Model`; inputs are token ids if the first layer is an embedding.
        exact: whether weights and inputs are such exact values; otherwise they are normally distributed.
        seed: of the weights only.
        gain: weights other than biases are multiplied by 2 to this power.
        offset: is added to every bias and shift, so that values are large compared with their differences.
        shift: is added to every input that is not an id.
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
        """True if inputs are token ids."""
        return isinstance(self.layers[0], Embedding)

    @cached_property
    def model(self) -> Model:
        """The model with its initial weights."""
        model = Model("drawn", self.layers, self.sample, self.losses, self.integer_inputs, self.token_level)
        return replace(model, starts=self._signed_rows(model) if self.exact else self._normal(model))

    @property
    def values(self) -> int:
        """Number of values of all parameters."""
        return sum(math.prod(shape) for shape in self.model.parameter_shapes().values())

    @property
    def longest_sum(self) -> int:
        """Number of terms of the longest sum in a product with a weight, forward or backward."""
        tables, shapes = _tables(self.model), self.model.parameter_shapes().items()
        weights = [shape for name, shape in shapes if name.endswith("weight") and name not in tables]
        return max(max(math.prod(shape[:-1]), shape[-1]) for shape in weights)

    def without_masks(self) -> GeneratedModel:
        """Return the model with all dropout rates set to 0."""
        return replace(
            self, layers=tuple(Dropout(0.0) if isinstance(layer, Dropout) else layer for layer in self.layers)
        )

    def _signed_rows(self, model: Model) -> tuple[tuple[str, Array], ...]:
        """Draw weights whose rows have one nonzero value each; a table's rows have no zeros."""
        rng = np.random.default_rng([self.seed, 21])
        starts: list[tuple[str, Array]] = []
        tables = _tables(model)
        for name, shape in model.parameter_shapes().items():
            role = name.rsplit(".", 1)[1]
            if role == "weight":
                rows, columns = math.prod(shape[:-1]), shape[-1]
                places = rng.permutation(rows) % columns
                chosen = np.ones((rows, columns)) if name in tables else places[:, None] == np.arange(columns)
                weight = np.where(chosen, rng.choice([-1.0, 1.0], (rows, columns)), 0.0)
                starts.append((name, np.ldexp(weight, self.gain).reshape(shape)))
            elif role == "bias":
                bias = rng.choice([-0.5, -0.0, 0.0, 0.5], shape)
                starts.append((name, bias + self.offset if self.offset else bias))
        return tuple(starts)

    def _normal(self, model: Model) -> tuple[tuple[str, Array], ...]:
        """Draw normally distributed weights, biases and shifts."""
        weights = model.weights(self.seed)
        rng = np.random.default_rng([self.seed, 22])
        for name, value in weights.items():
            if name.endswith("weight"):
                weights[name] = np.ldexp(value, self.gain)
            if name.rsplit(".", 1)[1] in ("bias", "shift"):
                weights[name] = (0.25 * rng.standard_normal(value.shape) + self.offset).astype(value.dtype)
        return tuple(weights.items())


def _tables(model: Model) -> set[str]:
    """Return the names of weights whose rows are looked up and not multiplied."""
    return {f"{path}.weight" for path, layer, _ in model.shapes() if isinstance(layer, Embedding | Positions)}


@dataclass(frozen=True)
class GeneratedBatch:
    """One micro-batch of drawn data.

    Attributes:
        size: number of samples.
        mask: positions that count in a token-level loss: all, the first few of each sequence, any, or none at all.
        heads: names of the heads for which the batch has targets, empty for all.
        magnitude: inputs other than ids are multiplied by 2 to this power.
        spoilt: value of the last element of inputs other than ids, None for an ordinary value.
        constant: whether all inputs, including ids, have one value.
    """

    size: int
    seed: int = 0
    mask: MaskKind = "none"
    heads: tuple[str, ...] = ()
    magnitude: int = 0
    spoilt: float | None = None
    constant: bool = False

    def items(self, drawn: GeneratedModel) -> int:
        """Return its number of items for a model."""
        return self.batch(drawn).items if drawn.token_level else self.size

    def batch(self, drawn: GeneratedModel) -> Batch:
        """Return the data for a model."""
        rng = np.random.default_rng([self.seed, self.size, 23])
        inputs = self._draw_inputs(drawn, rng)
        targets = self._draw_targets(drawn, rng)
        return Batch(inputs, targets, self._draw_mask(drawn.sample[0], rng) if drawn.token_level else None)

    def _draw_inputs(self, drawn: GeneratedModel, rng: np.random.Generator) -> Array:
        shape, first = (self.size, *drawn.sample), drawn.layers[0]
        if isinstance(first, Embedding):
            inputs: Array = rng.integers(0, first.entries, shape)
            inputs.reshape(-1)[[0, -1]] = 0, first.entries - 1
        elif drawn.exact:
            inputs = np.ldexp(rng.choice([-1.0, 1.0], shape), rng.integers(-1, 2, shape) + self.magnitude)
        else:
            inputs = np.ldexp(rng.standard_normal(shape), self.magnitude) + drawn.shift
        if self.constant:
            inputs = np.full_like(inputs, inputs.reshape(-1)[-1])
        if drawn.integer_inputs:
            return inputs
        if self.spoilt is not None:
            inputs.reshape(-1)[-1] = self.spoilt
        return inputs.astype(np.float32)

    def _draw_targets(self, drawn: GeneratedModel, rng: np.random.Generator) -> dict[str, Array]:
        """Draw classes, or multiples of a quarter; those of all heads, so that `heads` changes no others."""
        heads = {head.name: head for head in drawn.model.heads.heads}
        places = (self.size, drawn.sample[0]) if drawn.token_level else (self.size,)
        targets: dict[str, Array] = {}
        for name, kind in drawn.losses:
            units = heads[name].units
            if kind == "cross_entropy":
                targets[name] = rng.integers(0, units, places)
                continue
            quarters = rng.integers(-8, 9, (*places, units)) / 4.0
            wide = heads[name].format == "float64"
            targets[name] = quarters + BEYOND_FLOAT32 if wide and self.seed % 2 else quarters
            targets[name] = targets[name].astype(np.float64 if wide else np.float32)
        return {name: target for name, target in targets.items() if name in (self.heads or targets)}

    def _draw_mask(self, length: int, rng: np.random.Generator) -> Array:
        """Draw which of `length` positions of each sample count, as (n, length) of 0.0 and 1.0."""
        lengths = rng.integers(1, length + 1, self.size)
        lengths = {"ragged": lengths, "empty": 0 * lengths}.get(self.mask, np.full(self.size, length))
        mask: Array = (np.arange(length)[None, :] < lengths[:, None]).astype(np.float32)
        if self.mask == "holes":
            mask *= rng.integers(0, 2, mask.shape)
            mask[-1, -1] = 1.0
        return mask


Way = Literal["accumulate", "update", "gradients", "predict", "averaged", "trace", "bytes"]
Damage = Literal["cut", "foreign", "missing"]
Target = Literal["same", "fresh", "used", "predicted", "skipped", "stopped"]


@dataclass(frozen=True)
class Spike:
    """A value in one element of one parameter's gradient; `parameter` and `element` are shares of all, in [0, 1)."""

    value: float
    parameter: float
    element: float


@dataclass(frozen=True)
class SpikedGradient:
    """The gradient of one micro-batch: `base` everywhere but in the spikes.

    Attributes:
        missing: place of the parameter without a gradient, as a share of all in [0, 1); None if all have one.
        nothing: whether no parameter has a gradient.
    """

    base: float
    spikes: tuple[Spike, ...] = ()
    missing: float | None = None
    nothing: bool = False

    def gradients(self, parameters: dict[str, Array]) -> dict[str, Array | None]:
        """Return a gradient for every parameter, in its shape and format; None for a missing one."""
        gradients = {name: np.full_like(value, self.base) for name, value in parameters.items()}
        names = list(gradients)
        for spike in self.spikes:
            values = gradients[names[int(spike.parameter * len(names))]].reshape(-1)
            values[int(spike.element * values.size)] = spike.value
        gone = None if self.missing is None else names[int(self.missing * len(names))]
        return {name: None if self.nothing or name == gone else value for name, value in gradients.items()}


@dataclass(frozen=True)
class Accumulate:
    """Forward and backward of a micro-batch, whose window has `items` items."""

    micro: GeneratedBatch
    items: int


@dataclass(frozen=True)
class Apply:
    """The end of a window; `flush` if it holds fewer micro-batches than the recipe requires."""

    flush: bool = False


@dataclass(frozen=True)
class Train:
    """A whole window by `Trainer.update`, `times` in a row.

    With `cut`, its only micro-batch is split into micro-batches of these sizes.
    """

    micros: tuple[GeneratedBatch, ...]
    cut: tuple[int, ...] = ()
    times: int = 1


@dataclass(frozen=True)
class ApplyGradients:
    """An update from external gradients, `times` in a row; the other fields are those of `Trainer.apply_gradients`."""

    window: tuple[SpikedGradient, ...]
    unscale_calls: int | None = None
    discard: bool = False
    inject: SpikedGradient | None = None
    times: int = 1


@dataclass(frozen=True)
class Gradients:
    """The gradients of a window without an update, `times` in a row."""

    micros: tuple[GeneratedBatch, ...]
    times: int = 1


@dataclass(frozen=True)
class Predict:
    """An evaluation, with averaged weights if `averaged`."""

    micro: GeneratedBatch
    averaged: bool = False


@dataclass(frozen=True)
class Save:
    """Saves the run in a slot."""

    slot: int = 0


@dataclass(frozen=True)
class RestoreOverrides:
    """Overrides for a restored run: ranks and offload."""

    ranks: Ranks | None = None
    offload: Offload | None = None

    def recipe(self, saved: Recipe) -> Recipe:
        """Return the recipe of the restored run."""
        return saved.replace(ranks=self.ranks, offload=self.offload)


@dataclass(frozen=True)
class Restore:
    """Restores the last save of a slot, into the run itself or into another run.

    Attributes:
        under: overrides for the other run; None for the case's recipe.
        alike: whether the other run has the recipe of the current run.
    """

    slot: int = 0
    into: Target = "fresh"
    under: RestoreOverrides | None = None
    alike: bool = False

    def by_others(self, usual: Recipe) -> bool:
        """Return whether the restored run has other ranks than the recipe `usual`."""
        return self.under is not None and self.under.ranks != usual.ranks

    def offloads_otherwise(self, usual: Recipe) -> bool:
        """Return whether the restored run has another offload than the recipe `usual`."""
        return self.under is not None and self.under.offload != usual.offload


@dataclass(frozen=True)
class RestoreDamaged:
    """Tries to restore the last save of a slot with one damaged file.

    Attributes:
        file: place of the damaged file, as a share of all in [0, 1).
    """

    slot: int = 0
    damage: Damage = "cut"
    file: float = 0.0


@dataclass(frozen=True)
class DamageOffloaded:
    """Changes or removes a file that the run has offloaded, reads the training state, and puts the file back.

    Attributes:
        file: place of the file, as a share of all in [0, 1).
        byte: place of the changed byte, as a share of the file in [0, 1); None removes the file.
    """

    file: float = 0.0
    byte: float | None = None


@dataclass(frozen=True)
class StartAgain:
    """A new run in the same process, which leaves the former run as it is; with `onward` it takes that run's weights.

    Every program begins with this verb, so that the initial state is observed.
    """

    onward: bool = False


@dataclass(frozen=True)
class TraceLayers:
    """A trace of every layer in the pass of one micro-batch."""

    micro: GeneratedBatch


@dataclass(frozen=True)
class CountBytes:
    """A count of the bytes that are kept between forward and backward of a micro-batch."""

    micro: GeneratedBatch


@dataclass(frozen=True)
class WrongWidth:
    """A micro-batch of the wrong width, given to one of the methods that take one; its forward pass must raise."""

    micro: GeneratedBatch
    way: Way = "accumulate"


@dataclass(frozen=True)
class OpenScope:
    """The framework's own precision scope, opened and left between two verbs; with `raises`, an exception leaves it."""

    format: FormatName
    enabled: bool = True
    raises: bool = False


TrainingVerb = Accumulate | Apply | Train | ApplyGradients | Gradients | StartAgain
ReadingVerb = Predict | TraceLayers | CountBytes | WrongWidth | OpenScope
SavingVerb = Save | Restore | RestoreDamaged | DamageOffloaded
Verb = TrainingVerb | ReadingVerb | SavingVerb


def step_text(verb: Verb) -> str:
    """Return a verb in words, such as "train on 4 + 2 samples"."""
    text = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(verb).__name__).lower()
    match verb:
        case Train(cut=sizes) if sizes:
            pass
        case Train(micros=micros) | Gradients(micros=micros):
            sizes = tuple(micro.size for micro in micros)
        case Accumulate(micro=micro) | Predict(micro=micro):
            sizes = (micro.size,)
        case _:
            return text
    return f"{text} on {' + '.join(map(str, sizes))} samples"


@dataclass(frozen=True)
class GeneratedCase:
    """A program of verbs on a model under a recipe."""

    drawn: GeneratedModel
    recipe: Recipe
    program: tuple[Verb, ...]

    def loaded_under(self, change: Callable[[RestoreOverrides], RestoreOverrides]) -> GeneratedCase:
        """Return the case with `change` applied to the overrides of every restore."""
        verbs = (
            replace(verb, under=change(verb.under)) if isinstance(verb, Restore) and verb.under else verb
            for verb in self.program
        )
        return replace(self, program=tuple(verbs))


def scales_dynamically(recipe: Recipe) -> bool:
    """Return whether a recipe has a dynamic loss scale that is enabled."""
    return isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled


def cut_otherwise(window: Window, cut: tuple[int, ...]) -> Window:
    """Return a window with its only micro-batch split into these sizes; the window itself if there are none."""
    return window[0].split(*cut) if cut else window


def open_windows(program: tuple[Verb, ...]) -> list[bool]:
    """Return for each verb whether a window is open after it: it waits for further micro-batches or for its end."""
    waiting = False
    states: list[bool] = []
    for verb in program:
        waiting = isinstance(verb, Accumulate) or (waiting and not isinstance(verb, Apply | StartAgain))
        states.append(waiting)
    return states
