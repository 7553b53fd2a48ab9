"""A case as a value: a model, a recipe, and a program of verbs. Its `repr` makes it again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from conformance.generative.programs.data import GeneratedBatch, GeneratedModel
from fixtures.arrays import Array
from fixtures.model import Window
from fixtures.recipe import FormatName, Offload, Ranks, Recipe

Way = Literal["accumulate", "update", "gradients", "predict", "averaged", "trace", "bytes"]
Damage = Literal["cut", "foreign", "missing"]
Target = Literal["same", "fresh", "used", "predicted", "skipped", "stopped"]


@dataclass(frozen=True)
class Spike:
    """A value in one element of one parameter's gradient; both places are shares of the whole, in [0, 1)."""

    value: float
    parameter: float
    element: float


@dataclass(frozen=True)
class SpikedGradient:
    """The gradient of one micro-batch: `base` everywhere but in the spikes.

    Attributes:
        missing: the parameter that has none, as a share of all in [0, 1).
        nothing: whether no parameter has one.
    """

    base: float
    spikes: tuple[Spike, ...] = ()
    missing: float | None = None
    nothing: bool = False

    def gradients(self, parameters: dict[str, Array]) -> dict[str, Array | None]:
        """A gradient for every parameter, in its shape and format."""
        given = {name: np.full_like(value, self.base) for name, value in parameters.items()}
        names = list(given)
        for spike in self.spikes:
            values = given[names[int(spike.parameter * len(names))]].reshape(-1)
            values[int(spike.element * values.size)] = spike.value
        gone = None if self.missing is None else names[int(self.missing * len(names))]
        return {name: None if self.nothing or name == gone else value for name, value in given.items()}


@dataclass(frozen=True)
class Accumulate:
    """Forward and backward of a micro-batch of a window with so many items."""

    micro: GeneratedBatch
    items: int


@dataclass(frozen=True)
class Apply:
    """The end of a window; `flush` if it holds fewer micro-batches than the recipe says."""

    flush: bool = False


@dataclass(frozen=True)
class Train:
    """A whole window by `Trainer.update`, so often in a row.

    With `cut` its only micro-batch is cut into micro-batches of these sizes.
    """

    micros: tuple[GeneratedBatch, ...]
    cut: tuple[int, ...] = ()
    times: int = 1


@dataclass(frozen=True)
class ApplyGradients:
    """Gradients from outside, so often in a row; the other fields as in `Trainer.apply_gradients`."""

    window: tuple[SpikedGradient, ...]
    unscale_calls: int | None = None
    discard: bool = False
    inject: SpikedGradient | None = None
    times: int = 1


@dataclass(frozen=True)
class Gradients:
    """The gradients of a window, without an update, so often in a row."""

    micros: tuple[GeneratedBatch, ...]
    times: int = 1


@dataclass(frozen=True)
class Predict:
    """An evaluation, of the average if `averaged`."""

    micro: GeneratedBatch
    averaged: bool = False


@dataclass(frozen=True)
class Save:
    """Saves the run under a number."""

    slot: int = 0


@dataclass(frozen=True)
class RestoreOverrides:
    """Overrides for a restored run: ranks and offload."""

    ranks: Ranks | None = None
    offload: Offload | None = None

    def recipe(self, saved: Recipe) -> Recipe:
        """The recipe of the loaded run."""
        return saved.replace(ranks=self.ranks, offload=self.offload)


@dataclass(frozen=True)
class Restore:
    """Restores the last save of a slot, into the run itself or into another, used one.

    Attributes:
        under: overrides for the other run, None for the case's recipe.
        alike: whether the other run has the same overrides as the run itself.
    """

    slot: int = 0
    into: Target = "fresh"
    under: RestoreOverrides | None = None
    alike: bool = False

    def by_others(self, usual: Recipe) -> bool:
        """Whether the restored run has other ranks than the recipe."""
        return self.under is not None and self.under.ranks != usual.ranks

    def offloads_otherwise(self, usual: Recipe) -> bool:
        """Whether the restored run has another offload than the recipe."""
        return self.under is not None and self.under.offload != usual.offload


@dataclass(frozen=True)
class RestoreDamaged:
    """Tries to restore the last save of a slot with one damaged file.

    Attributes:
        file: which one, as a share of all in [0, 1).
    """

    slot: int = 0
    damage: Damage = "cut"
    file: float = 0.0


@dataclass(frozen=True)
class DamageOffloaded:
    """Changes or takes away a file that the run has offloaded, asks for the training state, and puts the file back.

    Attributes:
        file: which one, as a share of all in [0, 1).
        byte: the place of the byte that is changed, as a share of the file in [0, 1); None takes the file away.
    """

    file: float = 0.0
    byte: float | None = None


@dataclass(frozen=True)
class StartAgain:
    """A new run in the same process, the one before left as it stands; with `onward` it begins with that one's weights.

    Every program begins with it, so that a run is looked at before anything happens.
    """

    onward: bool = False


@dataclass(frozen=True)
class TraceLayers:
    """A trace of every layer in the pass of one micro-batch."""

    micro: GeneratedBatch


@dataclass(frozen=True)
class CountBytes:
    """A count of the bytes that a micro-batch keeps between forward and backward."""

    micro: GeneratedBatch


@dataclass(frozen=True)
class WrongWidth:
    """A micro-batch of the wrong width, whose forward pass raises, in one of the methods that take one."""

    micro: GeneratedBatch
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
    | ApplyGradients
    | Gradients
    | Predict
    | Save
    | Restore
    | RestoreDamaged
    | DamageOffloaded
    | StartAgain
    | TraceLayers
    | CountBytes
    | WrongWidth
    | OpenScope
)


def step_text(verb: Verb) -> str:
    """A verb in words, such as "train on 4 + 2 samples"."""
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(verb).__name__).lower()
    match verb:
        case Train(cut=sizes) if sizes:
            pass
        case Train(micros=micros) | Gradients(micros=micros):
            sizes = tuple(micro.size for micro in micros)
        case Accumulate(micro=micro) | Predict(micro=micro):
            sizes = (micro.size,)
        case _:
            return words
    return f"{words} on {' + '.join(map(str, sizes))} samples"


@dataclass(frozen=True)
class GeneratedCase:
    """A program of verbs on a model under a recipe."""

    drawn: GeneratedModel
    recipe: Recipe
    program: tuple[Verb, ...]

    def loaded_under(self, change: Callable[[RestoreOverrides], RestoreOverrides]) -> GeneratedCase:
        """The case with every restore that has overrides replaced."""
        verbs = (
            replace(verb, under=change(verb.under)) if isinstance(verb, Restore) and verb.under else verb
            for verb in self.program
        )
        return replace(self, program=tuple(verbs))


def cut_otherwise(window: Window, cut: tuple[int, ...]) -> Window:
    """A window, its only micro-batch cut into micro-batches of these sizes if there are any."""
    return window[0].split(*cut) if cut else window


def open_windows(program: tuple[Verb, ...]) -> list[bool]:
    """After each verb, whether a window waits for further micro-batches or for its end."""
    waiting = False
    states: list[bool] = []
    for verb in program:
        waiting = isinstance(verb, Accumulate) or (waiting and not isinstance(verb, Apply | StartAgain))
        states.append(waiting)
    return states
