"""The law of dropout's masks: what tells two of them apart, what is read off a pass, and what each failure says."""

import math
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.generative.mask_statistics import ObservedMask, Shares
from conformance.generative.masks import OPTIMIZER, MaskedCase, RevealingModel
from conformance.generative.programs.case import Gradients, StartAgain, Train, Verb
from conformance.generative.programs.data import GeneratedBatch
from conformance.search.adapter_settings import generative_settings
from fixtures.arrays import Array
from fixtures.layers import Dense, Dropout, Head, Heads
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults.reference.accumulation import OneMaskForTheWholeWindow

WIDE = RevealingModel((Dense(47), Dropout(0.5), Heads((Head("a", 2),))), (32,), (("a", "squared_error"),))
PASSES = (StartAgain(), Train((GeneratedBatch(4),)), Gradients((GeneratedBatch(4, 4),)))


def framework_of(trainer: Any) -> Any:
    """The reference with these trainers; a framework as it is."""
    return (
        type("Broken", (ReferenceFramework,), {"trainer_class": trainer})
        if issubclass(trainer, ReferenceTrainer)
        else trainer
    )


def failure(
    trainer: Any,
    model: RevealingModel = WIDE,
    program: tuple[Verb, ...] = PASSES,
    stride: int = 1,
    recipe: Recipe = Recipe(OPTIMIZER),
) -> Any:
    """What the law says of a program, of two passes of a run at first."""
    broken = framework_of(trainer)("cpu")
    return MaskedCase(model, recipe, program, stride).failure(Subject(broken), generative_settings(broken))


class OppositeNext(ReferenceTrainer):
    """Every second mask keeps what the one before dropped."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        odd = self.draws % 2
        self.draws -= odd
        mask = super().draw_mask(shape, rate)
        self.draws += odd
        return ~mask if odd else mask


class SeedOf32Bits(ReferenceTrainer):
    """The upper half of the seed does not count."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        self.recipe = self.recipe.replace(seed=self.recipe.seed % 2**32)
        return super().draw_mask(shape, rate)


class OtherRate(ReferenceTrainer):
    """A quarter of the values is dropped, and divided by a half."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, rate / 4.0)


class SkipRewinds(ReferenceTrainer):
    """A skipped update takes the masks of its window back."""

    def apply(self) -> Update:
        began = self.draws - self.window.micro_batches
        update = super().apply()
        self.draws = began if update.skipped else self.draws
        return update


class StreamOf256Draws(ReferenceTrainer):
    """Masks come again after 256 of them."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        self.draws %= 256
        return super().draw_mask(shape, rate)


SKIPPED = (StartAgain(), Train((GeneratedBatch(4, spoilt=math.inf),)), Gradients((GeneratedBatch(4),)))
TWICE = (StartAgain(), Gradients((GeneratedBatch(4),), times=2))
MANY = (StartAgain(), Gradients((GeneratedBatch(4),), times=260))


@pytest.mark.parametrize(
    ("trainer", "program", "settings", "name", "text"),
    [
        (SeedOf32Bits, PASSES * 2, {"stride": 2**32}, "repeated", ""),
        (SkipRewinds, SKIPPED, {"recipe": Recipe(OPTIMIZER, scaling=DynamicScaling(8.0))}, "stream", ""),
        (StreamOf256Draws, MANY, {}, "repeated", ""),
        (OneMaskForTheWholeWindow, TWICE, {}, "repeated", "is the mask that layer 1 had before"),
        (OppositeNext, PASSES, {}, "repeated", "is the opposite of the mask"),
        (OtherRate, PASSES, {}, "share", "deviation of the number of kept values"),
    ],
)
def test_masked_case_with_broken_masks_fails(
    trainer: Any, program: tuple[Verb, ...], settings: dict[str, Any], name: str, text: str
) -> None:
    assert failure(ReferenceTrainer, program=program, **settings) is None
    failed = failure(trainer, program=program, **settings)
    assert failed.name == name
    assert text in failed.text


def test_masked_case_without_what_shows_the_fault_holds() -> None:
    assert failure(SeedOf32Bits, program=PASSES * 2, stride=2**16) is None
    assert failure(SkipRewinds, recipe=Recipe(OPTIMIZER, scaling=DynamicScaling(8.0))) is None
    assert failure(StreamOf256Draws) is None


def test_masked_case_before_a_dropout_that_keeps_nothing_holds() -> None:
    class Nothing(ReferenceTrainer):
        def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
            mask = super().draw_mask(shape, rate)
            return np.zeros_like(mask) if shape[-1] == 3 else mask

    layers = (Dense(47), Dropout(0.5), Dense(3), Dropout(0.5), Heads((Head("a", 2),)))
    model = RevealingModel(layers, (32,), (("a", "squared_error"),))
    single = (StartAgain(), Train((GeneratedBatch(1),)), Gradients((GeneratedBatch(1, 4),)))
    assert failure(Nothing, model, single) is None


@pytest.mark.parametrize(("rate", "values"), [(0.5, 40), (0.25, 60), (0.75, 60), (0.1, 140)])
def test_telling_of_a_mask_needs_forty_bits_of_chance(rate: float, values: int) -> None:
    mask = ObservedMask(0, "1", rate, np.zeros((1, values), bool))
    assert mask.telling(values)
    assert not mask.telling(values - 6)


def test_shares_off_beyond_chance_only() -> None:
    shares = Shares()
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.75):
        shares.add(rate, rng.random((1000, 10)) >= rate)
    assert shares.off() is None
    shares.add(0.5, np.ones((100, 10), bool))
    assert "deviation of the number of kept values" in str(shares.off())
