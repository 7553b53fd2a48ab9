"""Recomputation over drawn models: any sequence of layers, cut anywhere, trains as it does in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from conformance.judging import Subject, Verdict, clause
from conformance.properties import explore
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Dropout, Embedding, Flatten, Head, Heads, Layer, LayerNorm, Residual
from fixtures.model import Batch, Model, Window
from fixtures.recipe import FLOAT32, SGD, Precision, Recipe, Recompute
from frameworks.contract import Trainer

RECIPE = Recipe(SGD(2.0**-4, momentum=0.5))
LOW = tuple(Precision(level, name) for level in ("O1", "O2") for name in ("float16", "bfloat16"))
TOKENS = (Embedding(3000, 4), Flatten())
WIDTH, SAMPLES = 12, 6


@dataclass(frozen=True)
class Case:
    """A model's layers before its head, and how they are cut; each takes and gives `WIDTH` values."""

    layers: tuple[Layer, ...]
    segments: int
    precision: Precision = FLOAT32
    parts: tuple[int, ...] = (SAMPLES,)

    @property
    def model(self) -> Model:
        """The layers with a head of three outputs; token ids go in where the first layer is an embedding."""
        ids = isinstance(self.layers[0], Embedding)
        sample = (WIDTH // 4,) if ids else (WIDTH,)
        layers = (*self.layers, Heads((Head("output", 3),)))
        return Model("drawn", layers, sample, (("output", "squared_error"),), integer_inputs=ids)

    def window(self, seed: int) -> Window:
        """The same samples whatever their division into `parts`."""
        rng = np.random.default_rng([seed, 8])
        model = self.model
        shape = (SAMPLES, *model.sample)
        ids, values = rng.integers(2048, 3000, shape), rng.standard_normal(shape).astype(np.float32)
        targets = rng.standard_normal((SAMPLES, 3)).astype(np.float32)
        return Batch(ids if model.integer_inputs else values, {"output": targets}).split(*self.parts)


BLOCKS: tuple[tuple[Layer, ...], ...] = (
    (Dense(WIDTH),),
    (Dense(WIDTH, bias=False), Activation("relu")),
    (Dense(WIDTH), Activation("tanh")),
    (Residual((Dense(WIDTH), Activation("sigmoid"))),),
    (Residual((Dense(WIDTH, bias=False),)), Activation("gelu")),
)


@st.composite
def cases(
    draw: st.DrawFn,
    blocks: tuple[tuple[Layer, ...], ...] = BLOCKS,
    *,
    first: tuple[Layer, ...] = (),
    last: tuple[Layer, ...] = (),
    precisions: tuple[Precision, ...] = (FLOAT32,),
    windows: bool = False,
    fewest: int = 1,
) -> Case:
    """Two to four blocks between given layers, in `fewest` to four segments."""
    body = draw(st.lists(st.sampled_from(blocks), min_size=2, max_size=4))
    layers = (*first, *(layer for block in body for layer in block), *last)
    segments = draw(st.integers(fewest, min(4, len(layers))))
    cut = draw(st.integers(1, SAMPLES - 1)) if windows else SAMPLES
    parts = (cut, SAMPLES - cut) if windows else (cut,)
    return Case(layers, segments, draw(st.sampled_from(precisions)), parts)


def run_of(
    subject: Subject, case: Case, variant: str | None = None, depth: Literal[0, 1, 2] = 0, accumulation: int = 1
) -> Trainer:
    """A run of the case's model, recomputed unless `depth` is 0."""
    recompute = Recompute(case.segments, depth=depth, variant=variant) if depth else None
    recipe = RECIPE.but(precision=case.precision, recompute=recompute, accumulation=accumulation)
    return subject.trainer(case.model, recipe)


@cache
def plain_gradients(subject: Subject, case: Case) -> dict[str, Array]:
    """Gradients without recomputation, which all variants and segmentations share."""
    return run_of(subject, case).gradients(case.window(subject.seed))


def same_gradients(subject: Subject, verdict: Verdict, case: Case, variant: str, depth: Literal[1, 2] = 1) -> None:
    """Gradients with recomputation against those without."""
    measured = run_of(subject, case, variant, depth).gradients(case.window(subject.seed))
    whole = Case(case.layers, 1, case.precision, case.parts)
    verdict.same_gradients(measured, plain_gradients(subject, whole), "every gradient")


@clause("recompute.same-gradients")
@explore(cases((*BLOCKS, (LayerNorm(),))), examples=8)
def test_any_segmentation_gives_the_same_gradients(
    subject: Subject, verdict: Verdict, case: Case, variant: str
) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.replays-dropout")
@explore(cases((*BLOCKS, (Dropout(0.25),)), last=(Dropout(0.5),)), examples=6)
def test_any_segmentation_replays_the_masks(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.replays-autocast")
@explore(cases((*BLOCKS[2:], (LayerNorm(),)), precisions=LOW[:2], fewest=2), examples=8)
def test_any_segmentation_replays_the_precision(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.no-grad-input")
@explore(cases(first=TOKENS), examples=4)
def test_token_ids_may_enter_any_segmentation(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant)


@clause("recompute.nested")
@explore(cases(last=(Dropout(0.5),)), examples=6)
def test_any_segmentation_may_be_nested(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    same_gradients(subject, verdict, case, variant, 2)


@clause("recompute.same-state")
@explore(cases(precisions=(FLOAT32, *LOW)), examples=6)
def test_any_segmentation_gives_the_same_state(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    window = case.window(subject.seed)
    states = []
    for run in (run_of(subject, case), run_of(subject, case, variant, 1)):
        losses = [run.update(window).loss for _ in range(2)]
        states.append((losses, subject.state(run)))
    verdict.equal(states[1][0], states[0][0], "losses of two updates", "loss-differs")
    verdict.same_state(states[1][1], states[0][1], "whole state after two updates")


@clause("recompute.with-accumulation")
@explore(cases(windows=True), examples=4)
def test_any_segmentation_inside_any_window(subject: Subject, verdict: Verdict, case: Case, variant: str) -> None:
    window, size = case.window(subject.seed), len(case.parts)
    runs = run_of(subject, case, accumulation=size), run_of(subject, case, variant, 1, accumulation=size)
    for run in runs:
        run.update(window)
    verdict.same_state(subject.state(runs[1]), subject.state(runs[0]), "whole state after a window of unequal parts")
