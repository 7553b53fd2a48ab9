"""The law of dropout's masks: what tells two of them apart, what is read off a pass, and what each failure says."""

from __future__ import annotations

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

WIDE = RevealingModel((Dense(47), Dropout(0.5), Heads((Head("a", 2),))), (32,), (("a", "squared_error"),))
PASSES = (StartAgain(), Train((GeneratedBatch(4),)), Gradients((GeneratedBatch(4, 4),)))


def failure(
    trainer: type[ReferenceTrainer],
    model: RevealingModel = WIDE,
    program: tuple[Verb, ...] = PASSES,
    stride: int = 1,
    recipe: Recipe = Recipe(OPTIMIZER),
) -> Any:
    """What the law says of a program, of two passes of a run at first."""
    broken = type("Broken", (ReferenceFramework,), {"trainer_class": trainer})("cpu")
    return MaskedCase(model, recipe, program, stride).failure(Subject(broken), generative_settings(broken))


def test_new_masks_that_both_passes_use_are_no_failure() -> None:
    assert failure(ReferenceTrainer) is None


class SameMask(ReferenceTrainer):
    """Every pass has the first one's mask."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        self.draws = 0
        return super().draw_mask(shape, rate)


class OtherRate(ReferenceTrainer):
    """A quarter of the values is dropped, and divided by a half."""

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        return super().draw_mask(shape, rate / 4.0)


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


def test_seeds_that_differ_in_any_bit_draw_other_masks() -> None:
    runs = (*PASSES, *PASSES)
    assert failure(ReferenceTrainer, program=runs, stride=2**32) is None
    assert failure(SeedOf32Bits, program=runs, stride=2**16) is None
    assert failure(SeedOf32Bits, program=runs, stride=2**32).name == "repeated"


def test_a_skipped_update_moves_the_random_stream() -> None:
    skipped = (StartAgain(), Train((GeneratedBatch(4, spoilt=math.inf),)), Gradients((GeneratedBatch(4),)))
    scaled = Recipe(OPTIMIZER, scaling=DynamicScaling(8.0))
    assert failure(ReferenceTrainer, program=skipped, recipe=scaled) is None
    assert failure(SkipRewinds, recipe=scaled) is None
    assert failure(SkipRewinds, program=skipped, recipe=scaled).name == "stream"


def test_each_of_many_passes_is_read() -> None:
    many = (StartAgain(), Gradients((GeneratedBatch(4),), times=260))
    assert failure(ReferenceTrainer, program=many) is None
    assert failure(StreamOf256Draws) is None
    assert failure(StreamOf256Draws, program=many).name == "repeated"


@pytest.mark.parametrize(
    ("trainer", "name", "words"),
    [
        (SameMask, "repeated", "is the mask that layer 1 had before"),
        (OppositeNext, "repeated", "is the opposite of the mask"),
        (OtherRate, "share", "deviation of the number of kept values"),
    ],
)
def test_what_is_wrong_with_masks_is_said(trainer: type[ReferenceTrainer], name: str, words: str) -> None:
    failed = failure(trainer)
    assert failed is not None
    assert failed.name == name
    assert words in failed.text


def test_a_mask_before_a_dropout_that_keeps_nothing_is_not_read() -> None:
    class Nothing(ReferenceTrainer):
        def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
            mask = super().draw_mask(shape, rate)
            return np.zeros_like(mask) if shape[-1] == 3 else mask

    layers = (Dense(47), Dropout(0.5), Dense(3), Dropout(0.5), Heads((Head("a", 2),)))
    model = RevealingModel(layers, (32,), (("a", "squared_error"),))
    broken = type("Broken", (ReferenceFramework,), {"trainer_class": Nothing})("cpu")
    single = (StartAgain(), Train((GeneratedBatch(1),)), Gradients((GeneratedBatch(1, 4),)))
    assert MaskedCase(model, Recipe(OPTIMIZER), single).failure(Subject(broken), generative_settings(broken)) is None


@pytest.mark.parametrize(("rate", "values"), [(0.5, 40), (0.25, 60), (0.75, 60), (0.1, 140)])
def test_masks_tell_from_forty_bits_of_chance_on(rate: float, values: int) -> None:
    mask = ObservedMask(0, "1", rate, np.zeros((1, values), bool))
    assert mask.telling(values)
    assert not mask.telling(values - 6)


def test_shares_within_chance_are_not_off() -> None:
    shares = Shares()
    rng = np.random.default_rng(0)
    for rate in (0.1, 0.5, 0.75):
        shares.add(rate, rng.random((1000, 10)) >= rate)
    assert shares.off() is None
    shares.add(0.5, np.ones((100, 10), bool))
    assert "deviation of the number of kept values" in str(shares.off())
