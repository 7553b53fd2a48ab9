"""Generates variations: a case, and the difference between its two plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from conformance.generative.programs.case import (
    Accumulate,
    ApplyGradients,
    GeneratedBatch,
    GeneratedCase,
    Gradients,
    SpikedGradient,
    Target,
    TraceLayers,
    Train,
    Verb,
    open_windows,
)
from conformance.generative.programs.grammar import models
from conformance.generative.programs.recipe_strategies import recipes, variants
from conformance.generative.programs.strategies import TARGETS, cases, few_files
from conformance.generative.programs.variations import (
    CutWindows,
    Elsewhere,
    Program,
    RecomputedCase,
    ResumedCase,
    ScaledCase,
    SecondRun,
)
from fixtures.model import BatchNorm, Dropout, LayerNorm, walk
from fixtures.recipe import DynamicScaling, Recompute, Scaling, StaticScaling
from frameworks.contract import Capability, Framework

THREES, TRIED = 3, 8
"""How many cases, each with two like it, a process plays, and how many are drawn to find those that are allowed."""
MANY_UPDATES, SMALL = 260, 128
"""More updates than 8 bits can count, and the largest size of a model that makes them."""
LONG = 1000
"""An interval that no drawn program reaches the end of."""


def programs(framework: Framework) -> st.SearchStrategy[Program]:
    """Cases to compare with the oracle."""
    return cases(framework).map(Program)


@st.composite
def recomputed(draw: st.DrawFn, framework: Framework) -> RecomputedCase:
    """Cases with recomputation, and most of them with dropout."""
    drawn = cases(framework, dropout=draw(st.integers(0, 3)) > 0)
    case = draw(drawn.filter(lambda case: len(case.drawn.layers) > 1))
    if case.recipe.recompute is None:
        segments = draw(st.integers(1, len(case.drawn.layers) - 1))
        recompute = Recompute(segments, variant=draw(variants(framework, case.drawn)))
        case = replace(case, recipe=case.recipe.replace(recompute=recompute))
    return RecomputedCase(draw(_after_many(case)))


@st.composite
def _after_many(draw: st.DrawFn, case: GeneratedCase) -> GeneratedCase:
    """The case, now and then with many updates before all others, if the model is small."""
    if case.drawn.values > SMALL or case.recipe.accumulation > 1 or draw(st.integers(0, 11)):
        return case
    long = Train((GeneratedBatch(2, draw(st.integers(0, 9))),), times=MANY_UPDATES)
    return few_files(replace(case, program=(*case.program[:1], long, *case.program[1:])))


@st.composite
def scaled(draw: st.DrawFn, framework: Framework) -> ScaledCase:
    """Cases in which nothing overflows or underflows, and a scale.

    Behind large weights a norm divides by values that nobody sees, up to 10^25, and the gradients become subnormal.
    """
    case = draw(cases(framework, dropout=True))
    if any(isinstance(layer, BatchNorm | LayerNorm) for _, layer in walk(case.drawn.layers)):
        case = replace(case, drawn=replace(case.drawn, gain=min(case.drawn.gain, 0)))
    recipe = case.recipe.replace(scaling=None)
    if recipe.precision.format == "float16":
        recipe = recipe.replace(precision=replace(recipe.precision, level="O0", format="float32"))
    program = tuple(_tame(verb) for verb in case.program)
    scalings: list[Scaling] = []
    exponent = draw(st.integers(1, 16))
    if framework.declares(Capability.STATIC_SCALING).supported:
        scalings.append(StaticScaling(2.0**exponent))
    if framework.declares(Capability.DYNAMIC_SCALING).supported:
        scalings.append(DynamicScaling(2.0**exponent, interval=LONG))
    return ScaledCase(replace(case, recipe=recipe, program=program), draw(st.sampled_from(scalings)))


def _tame(verb: Verb) -> Verb:
    """A verb whose gradients are of ordinary size, and whose scaler is not asked for."""
    match verb:
        case ApplyGradients(window=window):
            return ApplyGradients(tuple(SpikedGradient(max(-1.0, min(1.0, given.base))) for given in window))
        case Train(micros=micros) | Gradients(micros=micros):
            return replace(verb, micros=tuple(replace(micro, spoilt=None) for micro in micros))
        case Accumulate(micro=micro) | TraceLayers(micro=micro):
            return replace(verb, micro=replace(micro, spoilt=None))
        case _:
            return verb


@st.composite
def resumed(draw: st.DrawFn, framework: Framework) -> ResumedCase:
    """Cases with dropout, some of which begin with many updates, and a place between two windows."""
    case = draw(cases(framework, dropout=True))
    case = draw(_after_many(case))
    places = [0, *(place for place, waiting in enumerate(open_windows(case.program), 1) if not waiting)]
    targets: list[Target] = [t for t in TARGETS if t not in ("skipped", "stopped")]
    return ResumedCase(case, draw(st.sampled_from(places)), draw(st.sampled_from(targets)))


@st.composite
def second_runs(draw: st.DrawFn, framework: Framework) -> SecondRun:
    """Two cases, the first of which may end anywhere."""
    case, alike = draw(_alike(framework))
    first = alike if draw(st.booleans()) else draw(cases(framework, dropout=True))
    first = replace(first, program=first.program[: draw(st.integers(1, len(first.program)))])
    return SecondRun(case, first, in_turn=draw(st.booleans()))


def elsewhere(framework: Framework) -> st.SearchStrategy[Elsewhere]:
    """A case, the same with something changed, and the same with another seed."""
    return _alike(framework).map(lambda pair: Elsewhere((*pair, _reseeded(pair[0]))))


def _reseeded(case: GeneratedCase) -> GeneratedCase:
    return replace(case, recipe=case.recipe.replace(seed=case.recipe.seed + 1))


@st.composite
def handfuls(
    draw: st.DrawFn, threes: st.SearchStrategy[Elsewhere], allowed: Callable[[Elsewhere], bool]
) -> Elsewhere | None:
    """Some of them that are allowed, since a process takes longer to start than to play one; None if none is."""
    chosen: list[GeneratedCase] = []
    for _ in range(TRIED):
        if len(chosen) == 3 * THREES:
            break
        three = draw(threes)
        chosen += three.cases if allowed(three) else ()
    return Elsewhere(tuple(chosen)) if chosen else None


@st.composite
def _alike(draw: st.DrawFn, framework: Framework) -> tuple[GeneratedCase, GeneratedCase]:
    """A case and another with the same shapes, in which one thing is changed."""
    case = draw(cases(framework, dropout=True, subnormal=True))
    other = draw(cases(framework, dropout=True))
    recipe = case.recipe
    rate = draw(st.sampled_from([0.125, 0.375, 0.75]))
    rates = tuple(Dropout(rate) if isinstance(layer, Dropout) else layer for layer in case.drawn.layers)
    norms = tuple(
        replace(la, epsilon=1e-5 if la.epsilon > 1e-5 else 1e-3) if isinstance(la, BatchNorm | LayerNorm) else la
        for la in case.drawn.layers
    )
    changed = {
        "rates": replace(case, drawn=replace(case.drawn, layers=rates)),
        "epsilons": replace(case, drawn=replace(case.drawn, layers=norms)),
        "precision": replace(case, recipe=recipe.replace(precision=other.recipe.precision)),
        "schedule": replace(case, recipe=recipe.replace(schedule=other.recipe.schedule)),
        "optimizer": replace(case, recipe=recipe.replace(optimizer=other.recipe.optimizer)),
        "weights": replace(case, drawn=replace(case.drawn, seed=case.drawn.seed + 1)),
        "seed": _reseeded(case),
        "clip": replace(case, recipe=recipe.replace(clip=None)),
    }
    if isinstance(recipe.scaling, DynamicScaling) and isinstance(other.recipe.scaling, DynamicScaling):
        changed["scaling"] = replace(case, recipe=recipe.replace(scaling=other.recipe.scaling))
    if recipe.average is not None:
        changed["average"] = replace(case, recipe=recipe.replace(average=1.0 - recipe.average))
    return case, changed[draw(st.sampled_from(sorted(changed)))]


@st.composite
def cuts(draw: st.DrawFn, framework: Framework) -> CutWindows:
    """One to three windows of up to eight samples, and micro-batches of any sizes.

    Float16 has no scaling here: whether a window overflows it depends on where the window is cut. There is no QAT,
        whose ranges follow the micro-batches.
    """
    drawn = draw(models(framework).filter(lambda m: not any(isinstance(la, BatchNorm) for _, la in walk(m.layers))))
    recipe = draw(recipes(framework, drawn)).replace(accumulation=1, recompute=None, quantization=None)
    recipe = recipe.replace(scaling=None) if recipe.precision.format == "float16" else recipe
    count = draw(st.integers(2, 4))
    even = st.integers(1, 4).map(lambda size: (size,) * count)
    sizes = draw(even | st.tuples(*[st.integers(1, 4)] * count))
    micros = [GeneratedBatch(sum(sizes), draw(st.integers(0, 99))) for _ in range(draw(st.integers(1, 3)))]
    return CutWindows(GeneratedCase(drawn, recipe, tuple(Train((micro,)) for micro in micros)), sizes)
