"""Features of a case, which coverage counts and exclusions name; and strategies for recipes a framework supports."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast
from zlib import crc32

import numpy as np
from hypothesis import strategies as st

from conformance.checks.subject import supports
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    OpenScope,
    Predict,
    Restore,
    StartAgain,
    TraceLayers,
    Train,
    Verb,
    WrongWidth,
    cut_otherwise,
)
from conformance.search.properties import generative_settings
from fixtures.model import Activation, BatchNorm, Layer, SelfAttention, walk
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

LARGE = 10**5
"""Smallest number of values of a large parameter."""
MANY = 64
"""Smallest number of samples of a large micro-batch, or of all positions of their sequences."""
HUGE, BIG, TINY = 2.0**14, 2.0**6, 2.0**-13
"""Magnitudes from which values count as huge and as large, and up to which they count as tiny."""
SMALLEST_NORMAL = -126
"""Exponent of the smallest normal number of float32."""
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


def features(case: GeneratedCase) -> frozenset[str]:
    """Return every feature of a case."""
    layers = case.drawn.layers
    return frozenset([*recipe_features(case.recipe, layers), *model_features(case), *program_features(case)])


def recipe_features(recipe: Recipe, layers: tuple[Layer, ...]) -> Iterator[str]:
    """Yield features of the recipe and of the layers that it trains."""
    yield f"precision={recipe.precision.label}"
    yield from _optimizer_features(recipe)
    yield from _scaling_features(recipe.scaling)
    yield "accumulation>1" if recipe.accumulation > 1 else "accumulation=1"
    if (recompute := recipe.recompute) is not None:
        yield from ("recompute", f"recompute.depth={recompute.depth}")
        yield f"recompute.variant={recompute.variant or 'default'}"
        yield from _names_of({"recompute.uneven": (len(layers) - 1) % recompute.segments > 0})
    flags = {
        "clip": recipe.clip is not None,
        "schedule": recipe.schedule is not None,
        "groups=2": recipe.groups > 1,
        "optimizers=2": recipe.optimizers > 1,
        "separate-losses": recipe.separate_losses,
        "average": recipe.average is not None,
        "average=inexact": recipe.average is not None and not _in_float32(recipe.average),
        "aware": recipe.quantization is not None,
    }
    yield from _names_of(flags)
    yield from (f"way={way}" for way in recipe.ways)
    if recipe.ranks is not None:
        yield f"ranks={recipe.ranks.level}"
    if recipe.offload is not None:
        yield f"offload={recipe.offload.to}"
    yield from (f"layer={type(layer).__name__}" for _, layer in walk(layers))


def _optimizer_features(recipe: Recipe) -> Iterator[str]:
    optimizer = recipe.optimizer
    momentum = optimizer.momentum if isinstance(optimizer, SGD) else 0.0
    yield f"optimizer={'Momentum' if momentum > 0 else type(optimizer).__name__}"
    factors = recipe.schedule.factors if isinstance(recipe.schedule, Steps) else (1.0,)
    flags = {
        "momentum=inexact": not _in_float32(momentum),
        "weight-decay=inexact": isinstance(optimizer, AdamW) and not _in_float32(optimizer.weight_decay),
        "rate=inexact": not all(_in_float32(optimizer.learning_rate * factor) for factor in factors),
        "state=8-bit": isinstance(optimizer, Adam) and optimizer.state_bits == 8,
    }
    yield from _names_of(flags)
    if isinstance(optimizer, Adam | AdamW):
        epsilon = optimizer.epsilon
        yield from _names_of({"epsilon=default": epsilon is None, "epsilon=tiny": epsilon is None or epsilon <= TINY})


def _scaling_features(scaling: Scaling | None) -> Iterator[str]:
    match scaling:
        case None:
            yield "scaling=none"
        case StaticScaling(scale=scale):
            yield "scaling=static"
            yield from _names_of({"scaling=uneven-scale": not _power_of_two(scale)})
        case DynamicScaling(enabled=False):
            yield "scaling=disabled"
        case DynamicScaling(initial=initial, growth=growth, backoff=backoff):
            yield "scaling=dynamic"
            factors = [factor for factor in (initial, growth, backoff) if factor is not None]
            flags = {
                "scaling=uneven-scale": not all(map(_power_of_two, factors)),
                "scaling=factors": growth is not None,
                "scaling=unequal-factors": bool(growth and backoff and growth * backoff != 1.0),
            }
            yield from _names_of(flags)


def model_features(case: GeneratedCase) -> Iterator[str]:
    """Yield features of the model."""
    drawn = case.drawn
    yield "values=exact" if drawn.exact else "values=rounded"
    yield from (f"activation={layer.kind}" for _, layer in walk(drawn.layers) if isinstance(layer, Activation))
    yield from (f"loss={kind}" for _, kind in drawn.losses)
    yield from (f"head={head.format}" for head in drawn.model.heads.heads)
    yield f"heads={len(drawn.losses)}"
    attention = [(layer.heads, shape) for _, layer, shape in drawn.model.shapes() if isinstance(layer, SelfAttention)]
    sizes = [math.prod(shape) for shape in drawn.model.parameter_shapes().values()]
    flags = {
        "token-level": drawn.token_level,
        "token-ids": drawn.integer_inputs,
        "attention=heads-as-places": any(shape == (heads, heads) for heads, shape in attention),
        "weights=large": drawn.gain > 0,
        "weights=small": drawn.gain < 0,
        "weights=offset": drawn.offset != 0.0,
        "inputs=far-from-zero": drawn.shift != 0.0,
        "parameters=few": len(sizes) < 4,
        "parameter=large": max(sizes) >= LARGE,
        "parameter=one-element": min(sizes) == 1,
        "parameter=odd": any(size % 2 and size > 1 for size in sizes),
    }
    yield from _names_of(flags)


def program_features(case: GeneratedCase) -> Iterator[str]:
    """Yield features of the program."""
    drawn = case.drawn
    length = drawn.sample[0] if drawn.token_level or drawn.integer_inputs else 1
    for verb in case.program:
        yield f"verb={word(verb)}"
        if isinstance(verb, Restore):
            yield "verb=Restore"
            others = {"ranks": verb.by_others(case.recipe), "offload": verb.offloads_otherwise(case.recipe)}
            yield from (f"under=other-{name}" for name in _names_of(others))
        yield from _data(verb, length)
    normalised = [shape for _, layer, shape in drawn.model.shapes() if isinstance(layer, BatchNorm)]
    widths = {shape[0] for shape in drawn.model.parameter_shapes().values() if len(shape) == 1}
    lengths = {*drawn.sample[:1]} if drawn.token_level else set()
    sizes = {micro.size for verb in case.program for micro in _list_training_batches(verb)}
    flags = {
        "window=optimizer-without-gradient": _optimizer_without_gradient(case),
        "normalised=one-value": 1 in sizes and any(math.prod(shape[:-1]) == 1 for shape in normalised),
        "batch=width": bool((lengths | sizes) & widths),
        "window=unequal-items": any(len(set(window)) > 1 for window in windows(case)),
    }
    yield from _names_of(flags)
    waiting = moved = False
    for verb in case.program:
        if moved and isinstance(verb, WrongWidth):
            yield "break=after-a-step"
        moved = isinstance(verb, Accumulate | Train) or (moved and not isinstance(verb, StartAgain))
        if waiting and not isinstance(verb, Accumulate | Apply):
            yield f"mid-window={word(verb)}"
        waiting = isinstance(verb, Accumulate) or (waiting and not isinstance(verb, Apply))


def windows(case: GeneratedCase) -> Iterator[list[int]]:
    """Yield the items of each micro-batch, window by window."""
    open_window: list[int] = []
    for verb in case.program:
        match verb:
            case Accumulate(micro=micro):
                open_window.append(micro.items(case.drawn))
            case Train(micros=(micro,), cut=(_, *_) as cut):
                yield [batch.items for batch in cut_otherwise((micro.batch(case.drawn),), cut)]
            case Train(micros=micros) | Gradients(micros=micros):
                yield [micro.items(case.drawn) for micro in micros]
            case Apply() | StartAgain():
                yield open_window
                open_window = []
    yield open_window


def _optimizer_without_gradient(case: GeneratedCase) -> bool:
    """Return whether some optimizer owns only parameters that have no gradient in a whole window."""
    names, count = list(case.drawn.model.parameter_shapes()), case.recipe.optimizers
    heads = {name for name, _ in case.drawn.losses}
    places = [names[i::count] for i in range(count)]
    open_window: set[str] = set()
    missing: list[set[str]] = []
    for verb in case.program:
        match verb:
            case ApplyGradients(window=window):
                gradients = [g.gradients({name: np.zeros(()) for name in names}) for g in window]
                missing.append({name for name in names if all(gradient[name] is None for gradient in gradients)})
            case Accumulate(micro=micro):
                open_window |= {*micro.heads} or heads
            case Train(micros=micros):
                missing.append(_select_of_heads(names, heads - {h for micro in micros for h in micro.heads or heads}))
            case Apply():
                missing.append(_select_of_heads(names, heads - open_window))
                open_window = set()
            case StartAgain():
                open_window = set()
    return any(set(owned) <= gone for gone in missing for owned in places)


def _select_of_heads(names: list[str], heads: set[str]) -> set[str]:
    return {name for name in names if name.rsplit(".", 2)[-2] in heads}


def word(verb: Verb) -> str:
    """Return a verb's name."""
    match verb:
        case WrongWidth(way=way):
            return f"WrongWidth.{way}"
        case Apply(flush=True):
            return "Flush"
        case Predict(averaged=True):
            return "PredictAveraged"
        case ApplyGradients(discard=True):
            return "Discard"
        case Restore(into=into):
            return f"Restore.{into}"
        case StartAgain(onward=True):
            return "StartAgain.onward"
        case _:
            return type(verb).__name__


def _list_training_batches(verb: Verb) -> tuple[GeneratedBatch, ...]:
    """Return the micro-batches that a verb passes through the model in training."""
    match verb:
        case Accumulate(micro=micro) | TraceLayers(micro=micro) | CountBytes(micro=micro):
            return (micro,)
        case Train(micros=micros) | Gradients(micros=micros):
            return micros
        case _:
            return ()


def _data(verb: Verb, length: int) -> Iterator[str]:
    match verb:
        case ApplyGradients(window=window):
            values = [value for gradient in window for value in (gradient.base, *(s.value for s in gradient.spikes))]
            flags = {
                "unscaled-by-hand": verb.unscale_calls is not None,
                "unscaled-twice": verb.unscale_calls == 2,
                "poisoned": verb.inject is not None,
                "often": verb.times > 1,
                "a-hundred-times": verb.times >= 100,
                "missing": any(gradient.missing is not None or gradient.nothing for gradient in window),
                "nothing": all(gradient.nothing for gradient in window),
            }
            yield from (f"feed={name}" for name in (*map(_size, values), *_names_of(flags)))
        case Accumulate(micro=micro) | Predict(micro=micro) | TraceLayers(micro=micro) | CountBytes(micro=micro):
            yield from _micro_batch_features(micro, length)
        case Train(micros=micros) | Gradients(micros=micros):
            for micro in micros:
                yield from _micro_batch_features(micro, length)
            ragged = len({micro.size for micro in micros}) > 1
            yield from _names_of({"window=ragged": ragged, "train=often": verb.times > 1})
        case OpenScope():
            yield f"scope={verb.format}"


def _micro_batch_features(micro: GeneratedBatch, length: int) -> Iterator[str]:
    yield f"mask={micro.mask}"
    flags = {
        "batch=one-sample": micro.size == 1,
        "batch=many": micro.size * length >= MANY,
        "targets=missing": bool(micro.heads),
        "inputs=large": micro.magnitude > 0,
        "inputs=small": micro.magnitude < 0,
        "inputs=subnormal": micro.magnitude < SMALLEST_NORMAL,
        "inputs=constant": micro.constant,
        "inputs=infinite": micro.spoilt is not None,
    }
    yield from _names_of(flags)


def _names_of(flags: Mapping[str, bool]) -> list[str]:
    """Return the names whose flag is set."""
    return [name for name, is_set in flags.items() if is_set]


def _in_float32(value: float) -> bool:
    """Return whether float32 holds the value exactly."""
    return value == float(np.float32(value))


def _power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


def _size(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0.0:
        return "zero"
    if abs(value) >= BIG:
        return "huge" if abs(value) >= HUGE else "large"
    return "tiny" if abs(value) <= TINY else "ordinary"


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
