"""Strategies for recipes from all fields that a framework supports."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast
from zlib import crc32

from hypothesis import strategies as st

from conformance.checks.subject import supports
from conformance.generative.programs.case import GeneratedModel
from conformance.search import generative_settings
from fixtures.model import BatchNorm, walk
from fixtures.recipe import (
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    FormatName,
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
from frameworks.ways import Way, find_installed_ways, sets

PRECISIONS = tuple(Precision(level, name) for level in ("O1", "O2", "O3") for name in ("float16", "bfloat16"))
SCHEDULES = (
    *(Steps((1,), (1.0, 0.5)), Steps((1, 3), (0.5, 1.0, 0.25)), Steps((2,), (0.25, 1.0))),
    *(Steps((5,), (1.0, 0.125)), Steps((2, 257), (1.0, 0.5, 0.25)), Steps((1, 3), (0.0, 0.5, 1.0))),
    *(Steps((0, 2), (1.0, 0.5, 0.25)), Steps((1,), (1.0, 0.3)), Steps((1, 2), (0.1, 0.7, 1.0))),
)
INEXACT_RATE = 0.03
"""A learning rate that no float format holds exactly."""
UNEVEN_SCALE = 1003.0
"""A scale that is no power of two, and that bfloat16 cannot hold."""
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
"""Largest number of values of a model that ranks train quickly, and of one that fills the buckets of a reduction."""
ONE_IN = 12
"""One recipe in this many has ranks, one has QAT, and two have an offload."""


def is_offered(framework: Framework, recipe: Recipe) -> bool:
    """Return whether a framework declares all capabilities that a recipe needs."""
    return supports(framework, *needs(recipe))


def scope_formats(framework: Framework) -> list[FormatName]:
    """Return the low formats for which a framework has precision scopes."""
    if not supports(framework, Capability.AUTOCAST_SCOPE):
        return []
    return [p.format for p in PRECISIONS if p.level == "O1" and is_offered(framework, Recipe(precision=p))]


@st.composite
def recipes(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel) -> Recipe:
    """Draw a recipe for a model from all fields that the framework declares; one in four combines all that go together.

    Two optimizers under a loss scale get no schedule: no clause says what counts as an update if one of them skips
    (`scaling.two-optimizers-rule`).
    """
    crowded = draw(st.integers(0, 3)) == 0

    def maybe(capability: Capability, chance: int) -> bool:
        return supports(framework, capability) and (draw(st.integers(1, chance)) == 1 or crowded)

    precisions = [p for p in PRECISIONS if is_offered(framework, Recipe(precision=p))]
    precision = draw(st.sampled_from([Precision(), *precisions]))
    recipe = Recipe(draw(_optimizers(drawn.exact)), precision)
    recipe = recipe.replace(scaling=draw(_scalings(framework)))
    if maybe(Capability.ACCUMULATION, 2):
        recipe = recipe.replace(accumulation=draw(st.sampled_from([2, 2, 2, 3, 3, 3, 4, 4, 4, 7, 7, 17])))
    if (layers := len(drawn.layers) - 1) and maybe(Capability.RECOMPUTE, 2):
        depth: Literal[1, 2] = 2 if supports(framework, Capability.RECOMPUTE_NESTED) and draw(st.booleans()) else 1
        recipe = recipe.replace(
            recompute=Recompute(draw(st.integers(1, layers)), depth, draw(variants(framework, drawn)))
        )
    if maybe(Capability.CLIP, 3):
        recipe = recipe.replace(clip=draw(st.sampled_from([2.0**-6, 0.3, 0.5, 2.0, 64.0])))
    if maybe(Capability.SCHEDULE, 3):
        recipe = recipe.replace(schedule=draw(st.sampled_from(SCHEDULES)))
    counts_agree = recipe.scaling is None or recipe.schedule is None
    if counts_agree and maybe(Capability.TWO_OPTIMIZERS, 5):
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
    """Return every second recipe with other ways of its techniques. A checksum chooses, so no other draw changes."""
    ways = _sets_of_ways(cast(Any, framework))
    choice = crc32(repr(recipe).encode())
    if not ways or recipe.ranks is not None or choice % 2:
        return recipe
    chosen = ways[choice // 2 % len(ways)]
    return recipe.replace(ways=tuple(str(way) for way in chosen if recipe.uses(way.technique)))


@cache
def _sets_of_ways(framework: Framework) -> tuple[tuple[Way, ...], ...]:
    """Return sets of ways without documented limits."""
    ways = find_installed_ways(framework.name, framework.mode) if framework.name in built_in() else ()
    return sets(tuple(way for way in ways if not way.limits))


@st.composite
def _techniques(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel, recipe: Recipe) -> Recipe:
    """Draw the recipe or, now and then, the recipe with ranks, an offload, QAT or 8-bit moments, as far as declared.

    Frameworks differ in which rank's batch-norm statistics they use (`sharding.buffers`), so batch norm excludes ranks.
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
        blocks: pairs: number of values in a block of 8-bit moments, and in the smallest parameter that has them.
    """

    ranks: Sequence[Ranks]
    offloads: Sequence[Offload]
    qat: Sequence[Qat]
    blocks: Sequence[tuple[int, int]]


def techniques_of(framework: Framework) -> Techniques:
    """Return the techniques that a framework's recipes may use."""
    return _techniques_of(cast(Any, framework))


@cache
def _techniques_of(framework: Framework) -> Techniques:
    left_out = generative_settings(framework).not_drawn

    def select(field: str, values: Sequence[Any]) -> list[Any]:
        return [v for v in values if field not in left_out and is_offered(framework, Recipe(**{field: v}))]

    eight = select("optimizer", [Adam(state_bits=8)])
    blocks = [(block, smallest) for block in (2, 7, 256) for smallest in (1, 2, 16)] if eight else []
    qat = select("quantization", [Qat(), Qat(1), Qat(2)])
    return Techniques(select("ranks", RANKS), select("offload", OFFLOADS), qat, blocks)


@st.composite
def _optimizers(draw: st.DrawFn, exact: bool) -> Optimizer:
    """Draw an optimizer; not Adam's usual epsilon for exact models, whose gradients may cancel to rounding error."""
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
    """Return a strategy for recomputation variants; for token ids, without those that need an input's gradient."""
    withheld = framework.conventions().gradient_input if drawn.integer_inputs else ()
    return st.sampled_from([None, *(v for v in framework.recompute_variants() if v not in withheld)])


@st.composite
def _scalings(draw: st.DrawFn, framework: Framework) -> Scaling | None:
    kinds: list[str] = ["none", "none"]
    kinds += ["static"] if supports(framework, Capability.STATIC_SCALING) else []
    kinds += ["dynamic"] * 3 if supports(framework, Capability.DYNAMIC_SCALING) else []
    kinds += ["disabled"] if supports(framework, Capability.SCALING_DISABLED) else []
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
    if supports(framework, Capability.SCALING_FACTORS) and draw(st.booleans()):
        growth, backoff = draw(st.sampled_from([1.5, 2.0, 4.0])), draw(st.sampled_from([0.125, 0.25, 0.5, 0.75]))
        return DynamicScaling(initial, growth, backoff, interval)
    return DynamicScaling(initial, interval=interval)
