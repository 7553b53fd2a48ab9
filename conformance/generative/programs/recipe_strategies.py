"""Generates recipes from a framework's declarations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast
from zlib import crc32

from hypothesis import strategies as st

from conformance.generative.programs.case import GeneratedModel
from conformance.search.adapter_settings import generative_settings
from fixtures.model import BatchNorm, walk
from fixtures.recipe import (
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Offload,
    OffloadedKind,
    Optimizer,
    Precision,
    Qat,
    Ranks,
    Recipe,
    Recompute,
    Scaling,
    StaticScaling,
    Steps,
)
from frameworks.contract import Capability, Framework, needs
from frameworks.registry import built_in
from frameworks.ways import Way, sets
from frameworks.ways import offered as offered_ways

PRECISIONS = tuple(Precision(level, name) for level in ("O1", "O2", "O3") for name in ("float16", "bfloat16"))
SCHEDULES = (
    *(Steps((1,), (1.0, 0.5)), Steps((1, 3), (0.5, 1.0, 0.25)), Steps((2,), (0.25, 1.0))),
    *(Steps((5,), (1.0, 0.125)), Steps((2, 257), (1.0, 0.5, 0.25)), Steps((1, 3), (0.0, 0.5, 1.0))),
    *(Steps((0, 2), (1.0, 0.5, 0.25)), Steps((1,), (1.0, 0.3)), Steps((1, 2), (0.1, 0.7, 1.0))),
)
INEXACT_RATE = 0.03
UNEVEN_SCALE = 1003.0
"""No power of two, and bfloat16 does not hold it."""


def offered(framework: Framework, recipe: Recipe) -> bool:
    """Whether a framework declares all that a recipe asks for."""
    return all(framework.declares(capability).supported for capability in needs(recipe))


@st.composite
def recipes(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel) -> Recipe:
    """Recipes from every field that the framework declares, for a model; one in four has all of them that go together.

    Two optimizers under a loss scale get no schedule: what is counted where one of them skips is open
    (`scaling.two-optimizers-rule`).
    """

    def supports(capability: Capability) -> bool:
        return framework.declares(capability).supported

    crowded = draw(st.integers(0, 3)) == 0

    def maybe(capability: Capability, chance: int) -> bool:
        return supports(capability) and (draw(st.integers(1, chance)) == 1 or crowded)

    precisions = [p for p in PRECISIONS if offered(framework, Recipe(precision=p))]
    precision = draw(st.sampled_from([Precision(), *precisions]))
    recipe = Recipe(draw(_optimizers(drawn.exact)), precision)
    recipe = recipe.replace(scaling=draw(_scalings(framework)))
    if maybe(Capability.ACCUMULATION, 2):
        recipe = recipe.replace(accumulation=draw(st.sampled_from([2, 2, 2, 3, 3, 3, 4, 4, 4, 7, 7, 17])))
    if (layers := len(drawn.layers) - 1) and maybe(Capability.RECOMPUTE, 2):
        depth: Literal[1, 2] = 2 if supports(Capability.RECOMPUTE_NESTED) and draw(st.booleans()) else 1
        recipe = recipe.replace(
            recompute=Recompute(draw(st.integers(1, layers)), depth, draw(variants(framework, drawn)))
        )
    if maybe(Capability.CLIP, 3):
        recipe = recipe.replace(clip=draw(st.sampled_from([2.0**-6, 0.3, 0.5, 2.0, 64.0])))
    if maybe(Capability.SCHEDULE, 3):
        recipe = recipe.replace(schedule=draw(st.sampled_from(SCHEDULES)))
    apart = recipe.scaling is None or recipe.schedule is None
    if apart and maybe(Capability.TWO_OPTIMIZERS, 5):
        recipe = recipe.replace(optimizers=2)
    elif maybe(Capability.GROUPS, 4):
        recipe = recipe.replace(groups=2)
    if len(drawn.losses) > 1 and maybe(Capability.TWO_LOSSES, 3):
        recipe = recipe.replace(separate_losses=True)
    if maybe(Capability.AVERAGE, 2):
        recipe = recipe.replace(average=draw(st.sampled_from([0.5, 0.75, 0.9, 0.999, 0.0])))
    recipe = draw(_techniques(framework, drawn, recipe))
    return _with_ways(framework, recipe.replace(seed=draw(st.integers(0, 3))))


def _with_ways(framework: Framework, recipe: Recipe) -> Recipe:
    """Every second recipe with other ways of what it uses; a checksum chooses, so that other draws stay as they are."""
    ways = _sets_of_ways(cast(Any, framework))
    choice = crc32(repr(recipe).encode())
    if not ways or recipe.ranks is not None or choice % 2:
        return recipe
    chosen = ways[choice // 2 % len(ways)]
    return recipe.replace(ways=tuple(str(way) for way in chosen if recipe.uses(way.technique)))


@cache
def _sets_of_ways(framework: Framework) -> tuple[tuple[Way, ...], ...]:
    """Sets of ways without documented limits."""
    here = offered_ways(framework.name, framework.mode) if framework.name in built_in() else ()
    return sets(tuple(way for way in here if not way.limits))


RANKS = (
    *(Ranks(2), Ranks(3), Ranks(2, "optimizer"), Ranks(2, "gradients"), Ranks(3, "optimizer"), Ranks(4, "gradients")),
    *(Ranks(2, "full"), Ranks(3, "full"), Ranks(4, "full"), Ranks(4, "full", 2), Ranks(4, "optimizer", 2)),
    *(Ranks(2, reduce="bfloat16"), Ranks(2, "full", reduce="bfloat16")),
)
OFFLOADED: tuple[tuple[OffloadedKind, ...], ...] = (
    *(("activations",), ("parameters",), ("optimizer",), ("parameters", "optimizer")),
    ("activations", "parameters", "optimizer"),
)
OFFLOADS = (*(Offload(what) for what in OFFLOADED * 2), *(Offload(what, "disk") for what in OFFLOADED))
SMALL, BUCKET = 1024, 16_384
"""Values of a model that is soon trained by several ranks, and of one that fills the buckets that some reduce by."""
ONE_IN = 12
"""One recipe in so many has ranks, one has QAT, and two offload."""


@st.composite
def _techniques(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel, recipe: Recipe) -> Recipe:
    """The recipe with ranks, an offload, QAT or 8-bit moments, now and then, as far as declared.

    Ranks that share a batch norm differ in whose statistics they take (`sharding.buffers`), so they get none.
    """

    def with_one(field: str, values: Sequence[Any], one_in: int) -> Recipe:
        wanted = bool(values) and draw(st.integers(1, one_in)) == 1
        return recipe.replace(**{field: draw(st.sampled_from(values))}) if wanted else recipe

    techniques = techniques_of(framework)
    norms = any(isinstance(layer, BatchNorm) for _, layer in walk(drawn.layers))
    if drawn.values <= BUCKET and not norms:
        recipe = with_one("ranks", techniques.ranks, ONE_IN if drawn.values <= SMALL else ONE_IN // 4)
    recipe = with_one("offload", techniques.offloads, ONE_IN // 2)
    if recipe.ranks is None:
        recipe = with_one("quantization", techniques.qat, ONE_IN)
    if isinstance(recipe.optimizer, Adam) and recipe.ranks is None:
        eight = [replace(recipe.optimizer, state_bits=8, block=n, smallest=least) for n, least in techniques.blocks]
        recipe = with_one("optimizer", eight, ONE_IN // 2)
    return recipe


@dataclass(frozen=True)
class Techniques:
    """Declarations of a framework, without those that its adapter excludes from generation.

    Attributes:
        blocks: values in a block of 8-bit moments, and in the smallest parameter that has them.
    """

    ranks: Sequence[Ranks]
    offloads: Sequence[Offload]
    qat: Sequence[Qat]
    blocks: Sequence[tuple[int, int]]


def techniques_of(framework: Framework) -> Techniques:
    """The possible parts of a framework's recipes."""
    return _techniques_of(cast(Any, framework))


@cache
def _techniques_of(framework: Framework) -> Techniques:
    left_out = generative_settings(framework).not_drawn

    def here(field: str, values: Sequence[Any]) -> list[Any]:
        return [v for v in values if field not in left_out and offered(framework, Recipe(**{field: v}))]

    eight = here("optimizer", [Adam(state_bits=8)])
    blocks = [(block, smallest) for block in (2, 7, 256) for smallest in (1, 2, 16)] if eight else []
    qat = here("quantization", [Qat(), Qat(1), Qat(2)])
    return Techniques(here("ranks", RANKS), here("offload", OFFLOADS), qat, blocks)


@st.composite
def _optimizers(draw: st.DrawFn, exact: bool) -> Optimizer:
    """Optimizers; an exact model's gradients may cancel to zero, and Adam's usual epsilon makes a step of rounding."""
    if draw(st.booleans()):
        return SGD(draw(st.sampled_from([2.0**-4, 2.0**-5, INEXACT_RATE])), draw(st.sampled_from([0.0, 0.0, 0.5, 0.9])))
    tiny = [] if exact else [(1e-3, 1e-8), (1e-3, None)]
    rate, epsilon = draw(st.sampled_from([(2.0**-3, 1.0), (2.0**-3, 1.0), *tiny]))
    forgetful = [(0.0, 0.75), *([(0.75, 0.0)] if epsilon == 1.0 else [])]
    first, second = draw(st.sampled_from([(0.9, 0.999), (0.9, 0.999), (0.5, 0.75), (0.75, 0.5), *forgetful]))
    if draw(st.booleans()):
        return Adam(rate, first, second, epsilon)
    return AdamW(rate, first, second, epsilon or 1e-8, draw(st.sampled_from([0.25, 0.01, 0.0])))


def variants(framework: Framework, drawn: GeneratedModel) -> st.SearchStrategy[str | None]:
    """Recomputation variants that may be asked for; one that needs an input with a gradient takes no token ids."""
    withheld = framework.conventions().gradient_input if drawn.integer_inputs else ()
    return st.sampled_from([None, *(v for v in framework.recompute_variants() if v not in withheld)])


@st.composite
def _scalings(draw: st.DrawFn, framework: Framework) -> Scaling | None:
    kinds: list[str] = ["none", "none"]
    kinds += ["static"] if framework.declares(Capability.STATIC_SCALING).supported else []
    kinds += ["dynamic"] * 3 if framework.declares(Capability.DYNAMIC_SCALING).supported else []
    kinds += ["disabled"] if framework.declares(Capability.SCALING_DISABLED).supported else []
    match draw(st.sampled_from(kinds)):
        case "none":
            return None
        case "static":
            return StaticScaling(draw(st.sampled_from([*(2.0**i for i in range(13)), *[UNEVEN_SCALE] * 3])))
        case "disabled":
            return DynamicScaling(enabled=False)
    floor = framework.conventions().scaler.minimum
    lowest = [floor] if floor else []
    initial = max(floor, draw(st.sampled_from([*(2.0**i for i in (0, 1, 4, 8, 11, 16)), UNEVEN_SCALE, *lowest])))
    if draw(st.integers(0, 5)) == 0:
        return DynamicScaling()
    interval = draw(st.sampled_from([1, 1, 2, 2, 3, 3, 5]))
    if framework.declares(Capability.SCALING_FACTORS).supported and draw(st.booleans()):
        growth, backoff = draw(st.sampled_from([1.5, 2.0, 4.0])), draw(st.sampled_from([0.125, 0.25, 0.5, 0.75]))
        return DynamicScaling(initial, growth, backoff, interval)
    return DynamicScaling(initial, interval=interval)
