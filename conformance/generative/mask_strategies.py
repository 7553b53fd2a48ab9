"""Generates models with dropout whose gradients reveal its masks, and programs with training passes."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from conformance.generative.masks import OPTIMIZER, ROWS, MaskedCase, RevealingModel
from conformance.generative.programs.case import (
    CountBytes,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    Save,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
)
from conformance.generative.programs.data import GeneratedBatch
from conformance.generative.programs.recipe_strategies import PRECISIONS, offered, variants
from conformance.generative.programs.variation_strategies import MANY_UPDATES
from conformance.search.adapter_settings import generative_settings
from fixtures.layers import Dense, Dropout, Embedding, Flatten, Head, Heads, Layer
from fixtures.model import LossKind
from fixtures.recipe import DynamicScaling, Precision, Recipe, Recompute, Scaling, StaticScaling
from frameworks.contract import Capability, Framework

RATES = (0.5, 0.5, 0.25, 0.75, 0.1)
LONGEST = 6
STRIDES = (1, 1, 2**16)
_INTO: tuple[Target, ...] = ("same", "fresh", "used", "predicted")


@st.composite
def masked(draw: st.DrawFn, framework: Framework) -> MaskedCase:
    """Programs of at least two training passes."""
    drawn = draw(_models())
    recipe = draw(_recipes(framework, drawn))
    first, last = draw(_passes(drawn, recipe)), draw(_passes(drawn, recipe))
    steps = draw(st.lists(_steps(framework, drawn, recipe, first), min_size=2, max_size=LONGEST))
    long = [2**32] * 2 if generative_settings(framework).seed_bits > 32 else []
    stride = draw(st.sampled_from([*STRIDES, *long]))
    return MaskedCase(drawn, recipe, (StartAgain(), first, *(verb for step in steps for verb in step), last), stride)


@st.composite
def _models(draw: st.DrawFn) -> RevealingModel:
    """A mask a sample, a place of a sequence, or several layers of one sample."""
    width = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 8, 9, 13, 31, 33, 40, 47, 64]))
    rate = st.sampled_from(RATES)
    kind = draw(st.sampled_from(["vectors", "vectors", "sequences", "deep"]))
    sample: tuple[int, ...] = (ROWS,)
    layers: tuple[Layer, ...] = (Dense(width, bias=draw(st.booleans())), Dropout(draw(rate)))
    if kind == "sequences":
        sample = (draw(st.integers(1, 4)),)
        layers = (Embedding(ROWS, width), Dropout(draw(rate)), Flatten())
    if kind == "deep":
        units = width if draw(st.booleans()) else draw(st.sampled_from([7, 40, 47]))
        layers = (*layers, Dense(units), Dropout(draw(rate)))
    names = ("a", "b") if draw(st.integers(0, 3)) == 0 else ("a",)
    heads = Heads(tuple(Head(name, draw(st.sampled_from([1, 2, 3]))) for name in names))
    losses: tuple[tuple[str, LossKind], ...] = tuple((name, "squared_error") for name in names)
    return RevealingModel((*layers, heads), sample, losses, exact=False, seed=draw(st.integers(0, 9)))


@st.composite
def _recipes(draw: st.DrawFn, framework: Framework, drawn: RevealingModel) -> Recipe:
    """Recipes under which nothing is clipped, overflows or underflows."""

    def supports(capability: Capability) -> bool:
        return framework.declares(capability).supported

    precisions = [p for p in PRECISIONS if p.level != "O3" and offered(framework, Recipe(precision=p))]
    recipe = Recipe(OPTIMIZER, draw(st.sampled_from([Precision(), Precision(), *precisions])))
    scalings: list[Scaling | None] = [None]
    scalings += [StaticScaling(8.0)] if supports(Capability.STATIC_SCALING) else []
    scalings += [DynamicScaling(8.0, interval=1000)] if supports(Capability.DYNAMIC_SCALING) else []
    recipe = recipe.replace(scaling=draw(st.sampled_from(scalings)))
    if not _deep(drawn) and supports(Capability.ACCUMULATION) and draw(st.booleans()):
        recipe = recipe.replace(accumulation=draw(st.sampled_from([2, 3])))
    if supports(Capability.RECOMPUTE) and draw(st.integers(0, 2)) == 0:
        segments = draw(st.integers(1, len(drawn.layers) - 1))
        recipe = recipe.replace(recompute=Recompute(segments, variant=draw(variants(framework, drawn))))
    if len(drawn.losses) > 1 and supports(Capability.TWO_LOSSES) and draw(st.booleans()):
        recipe = recipe.replace(separate_losses=True)
    if not offered(framework, recipe):
        recipe = Recipe(OPTIMIZER)
    return recipe.replace(seed=draw(st.integers(0, 3)))


def _deep(drawn: RevealingModel) -> bool:
    """Whether only a single sample shows the masks of all layers."""
    return sum(isinstance(layer, Dropout) for layer in drawn.layers) > 1


@st.composite
def _windows(draw: st.DrawFn, drawn: RevealingModel, count: int) -> tuple[GeneratedBatch, ...]:
    """Micro-batches of one size, no two of which take the same row."""
    most = ROWS // (count * drawn.places)
    size = 1 if _deep(drawn) else draw(st.integers(1, min(most, 8)))
    start = draw(st.integers(0, ROWS - 1))
    return tuple(GeneratedBatch(size, start + place * size * drawn.places) for place in range(count))


@st.composite
def _passes(draw: st.DrawFn, drawn: RevealingModel, recipe: Recipe) -> Verb:
    """Gradients of a window or an update."""
    if draw(st.booleans()):
        return Gradients(draw(_windows(drawn, draw(st.integers(1, recipe.accumulation)))))
    return Train(draw(_windows(drawn, recipe.accumulation)))


@st.composite
def _steps(
    draw: st.DrawFn, framework: Framework, drawn: RevealingModel, recipe: Recipe, first: Verb
) -> tuple[Verb, ...]:
    """A training pass, something that is to leave the masks alone, or a new run that begins with the same pass."""
    words = ["pass"] * 4 + ["again", "predict"]
    words += ["restore"] * 2 if framework.declares(Capability.CHECKPOINT).supported else []
    words += ["trace"] if framework.declares(Capability.TRACE).supported and recipe.recompute is None else []
    words += ["many-updates"] if recipe.accumulation == 1 and draw(st.integers(0, 3)) == 0 else []
    words += ["many-passes"] if draw(st.integers(0, 3)) == 0 else []
    words += ["bytes"] if framework.declares(Capability.SAVED_BYTES).supported else []
    scopes = [p.format for p in PRECISIONS if p.level == "O1" and offered(framework, Recipe(precision=p))]
    words += ["scope"] if framework.declares(Capability.AUTOCAST_SCOPE).supported and scopes else []
    words += ["skip"] * 2 if isinstance(recipe.scaling, DynamicScaling) else []
    one = draw(_windows(drawn, 1))[0]
    match draw(st.sampled_from(words)):
        case "pass":
            return (draw(_passes(drawn, recipe)),)
        case "again":
            return (StartAgain(), first)
        case "skip":
            spoilt = (replace(micro, spoilt=math.inf) for micro in draw(_windows(drawn, recipe.accumulation)))
            return (Train(tuple(spoilt)), draw(_passes(drawn, recipe)))
        case "predict":
            return (Predict(replace(one, size=draw(st.integers(1, 3)))),)
        case "restore":
            return (Save(), Restore(0, draw(st.sampled_from(_INTO))))
        case "trace":
            return (TraceLayers(one),)
        case "bytes":
            return (CountBytes(one),)
        case "many-updates":
            return (Train((one,), times=MANY_UPDATES),)
        case "many-passes":
            return (Gradients((one,), times=MANY_UPDATES),)
        case _:
            return (OpenScope(draw(st.sampled_from(scopes))),)
