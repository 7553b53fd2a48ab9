"""Strategies for cases: models from a grammar, batches, external gradients, and programs of verbs in a useful order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import strategies as st

from conformance.checks.subject import supports
from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    Damage,
    DamageOffloaded,
    GeneratedBatch,
    GeneratedCase,
    GeneratedModel,
    Gradients,
    MaskKind,
    OpenScope,
    Predict,
    Restore,
    RestoreDamaged,
    RestoreOverrides,
    Save,
    Spike,
    SpikedGradient,
    StartAgain,
    Target,
    TraceLayers,
    Train,
    Verb,
    Way,
    WrongWidth,
    scales_dynamically,
)
from conformance.generative.programs.features import MANY
from conformance.generative.programs.recipes import recipes, scope_formats, techniques_of
from conformance.search import ends_by_itself
from fixtures.model import (
    Activation,
    ActivationKind,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    Layer,
    LayerNorm,
    LossKind,
    MaxPool,
    Positions,
    Residual,
    SelfAttention,
    Shape,
    walk,
)
from fixtures.recipe import DynamicScaling, Offload, Ranks, Recipe
from frameworks.contract import Capability, Framework

W = TypeVar("W", bound=str)

TARGETS: tuple[Target, ...] = ("same", "fresh", "used", "predicted", "skipped", "stopped")
"""Runs into which a save is loaded."""

_WIDTHS = (1, 2, 3, 5, 7, 8, 13)
_LONG_WIDTHS = (33, 67, 130, 259, 1027)
"""Widths that exceed the usual blocks of kernels: 32, 64, 128, 256 and 1024."""
_LONG_SEQUENCES = (35, 67)
_MANY_CLASSES = (300, 1100)
"""Numbers of classes: more than 8 bits count, and more than a block of 1024."""
_BEYOND_16_BITS = 2**16 + 3
"""More than 16 bits count: rows of a table, values of a parameter, or samples of a micro-batch."""
_LARGE_TABLE_WIDTH = 2
"""Columns of a table with so many rows, which then has more than 10^5 values."""
_SHIFT = 64.0
"""Offset of inputs that are normalised first; at this magnitude a low format resolves only halves or sixteenths."""
_MOSTLY_RELU: tuple[ActivationKind, ...] = ("relu",) * 6 + ("gelu", "tanh", "sigmoid")
_ACTIVATIONS: tuple[ActivationKind, ...] = ("relu", "gelu", "tanh", "sigmoid")
_EPSILONS = st.sampled_from([1e-5, 1e-12])
_VARIANCE_EPSILONS = st.sampled_from([1e-5, 1e-5, 1e-3, 1e-7])
_MOMENTA = st.sampled_from([0.1, 0.1, 0.5, 0.5, 0.0, 1.0])
_SMALL_BATCHES = (2, 2, 3, 4, 5)
_LARGE_BATCHES = (MANY, MANY + 3, 4 * MANY + 3)
"""Samples of large micro-batches: they exceed blocks of 32, 64 or 256 samples. A mean over 64 is exact."""
_MAGNITUDES, _SUBNORMAL = (-10, 4, 9, 14), -130
"""Powers of two that multiply inputs; the last one makes them subnormal."""
_END = 0.999999
"""Place of the last value of a parameter, as a share of its values."""
_SEVERAL_UPDATES, _MANY_UPDATES = 7, 300
"""Numbers of consecutive updates; bfloat16 counts only to 256."""
_INFINITE_IN_FLOAT32 = 2.0**130
"""A value that is infinite in float32 and finite in float64."""
_SLOTS = st.integers(0, 1)
"""Slots of saves; there are few, so that saves of different kinds overwrite each other."""
_MOST_STEPS = 8
"""Largest number of steps of a program; a window of single micro-batches is one step."""


@st.composite
def models(draw: st.DrawFn, framework: Framework, dropout: bool = False) -> GeneratedModel:
    """Draw a model of one of four kinds: vectors in exact values, vectors, token sequences, or pictures.

    Args:
        dropout: whether to add dropout layers, at least one; no oracle knows their masks.
    """
    kind = draw(st.sampled_from(["exact"] * 5 + ["vectors"] * 3 + ["tokens", "pictures"] * 2))
    match kind:
        case "tokens":
            layers, sample = draw(_token_layers())
        case "pictures":
            layers, sample = draw(_picture_layers())
        case _:
            layers, sample = draw(_vector_layers(kind == "exact"))
    inner = bool(layers)
    if dropout:
        index = draw(st.integers(sum(isinstance(layer, Embedding | Positions) for layer in layers), len(layers)))
        rate = draw(st.sampled_from([0.25, 0.5]))
        layers = (*layers[:index], Dropout(rate), *layers[index:])
        if draw(st.booleans()):
            layers = (*layers, Dropout(0.5))
    shift = 0.0
    if inner and isinstance(layers[0], BatchNorm) and draw(st.booleans()):
        layers, shift = (replace(layers[0], momentum=1.0), *layers[1:]), _SHIFT
    heads, losses = draw(_heads(framework, kind, inner))
    plain = kind != "tokens" and not any(isinstance(layer, BatchNorm) for layer in layers)
    return GeneratedModel(
        (*layers, heads),
        sample,
        losses,
        kind == "tokens",
        exact=kind == "exact",
        seed=draw(st.integers(0, 9)),
        gain=draw(st.sampled_from([0, 0, 0, 0, 3, 7, -5])),
        offset=draw(st.sampled_from([0.0] * 6 + [16.0, 1024.0])) if plain else 0.0,
        shift=shift,
    )


@st.composite
def _vector_layers(draw: st.DrawFn, exact: bool) -> tuple[tuple[Layer, ...], Shape]:
    width = draw(st.sampled_from([*_WIDTHS * 4, *_LONG_WIDTHS]))
    sample: Shape = (width,)
    layers: list[Layer] = []
    if draw(st.integers(0, 4)) == 0:
        length = draw(st.integers(1, 3))
        large = draw(st.integers(0, 2)) == 0
        columns = _LARGE_TABLE_WIDTH if large else draw(st.sampled_from([1, 3, 4]))
        entries = _BEYOND_16_BITS if large else draw(st.sampled_from([2, 5, 16]))
        layers += [Embedding(entries, columns), Flatten()]
        sample, width = (length,), length * columns
    deep = draw(st.integers(0, 11)) == 0
    for _ in range(draw(st.integers(9, 11) if deep else st.integers(0, 4))):
        block, width = draw(_block(width, exact))
        layers += block
    return tuple(layers), sample


@st.composite
def _block(draw: st.DrawFn, width: int, exact: bool) -> tuple[tuple[Layer, ...], int]:
    """Draw some layers and their output width; an ordinary width follows a large one, so that no product is large."""
    long = width > max(_WIDTHS)
    names = ["dense", "activated", "bare"] + ([] if exact else ["batch-norm"]) + ([] if long else ["residual"])
    names += ["layer-norm"] if not exact and width > 1 else []  # one value minus its mean is pure rounding error
    units = draw(st.sampled_from([*_WIDTHS] if long else [*_WIDTHS * 4, *_LONG_WIDTHS]))
    activation_kind = draw(st.sampled_from(_MOSTLY_RELU if exact else _ACTIVATIONS))
    match draw(st.sampled_from(names)):
        case "dense":
            return (Dense(units),), units
        case "activated":
            return (Dense(units), Activation(activation_kind)), units
        case "residual":
            dense, activation = Dense(width), Activation(activation_kind)
            bodies: list[tuple[Layer, ...]] = [(dense, activation), (activation, dense), (dense, activation, dense)]
            bodies.append((dense, Residual((activation, dense))))
            return (Residual(draw(st.sampled_from(bodies))),), width
        case "bare":
            return (Dense(units, bias=False),), units
        case "layer-norm":
            return (LayerNorm(draw(_EPSILONS)), Dense(units)), units
        case _:
            norm = BatchNorm(draw(_MOMENTA), draw(_VARIANCE_EPSILONS))
            return draw(st.sampled_from([(Dense(units), norm), (Dense(units), norm), (norm, Dense(units))])), units


@st.composite
def _token_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    length, width = draw(st.sampled_from([*(2, 3, 4, 5) * 4, *_LONG_SEQUENCES])), draw(st.sampled_from([4, 6]))
    layers: list[Layer] = [Embedding(draw(st.sampled_from([3, 17, 4097])), width)]
    if draw(st.booleans()):
        layers.append(Positions(length))
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from(["attention", "dense", "norm"])):
            case "attention":
                norm, heads = LayerNorm(draw(_EPSILONS)), draw(st.sampled_from([1, 2, 2, width]))
                layers.append(Residual((norm, SelfAttention(heads))))
            case "dense":
                layers.append(Residual((Dense(7), Activation("gelu"), Dense(width))))
            case _:
                layers.append(LayerNorm(draw(_EPSILONS)))
    return tuple(layers), (length,)


@st.composite
def _picture_layers(draw: st.DrawFn) -> tuple[tuple[Layer, ...], Shape]:
    height, width = draw(st.sampled_from([*[(4, 4), (5, 4), (4, 6), (6, 5), (3, 7)] * 2, (19, 10)]))
    sample: Shape = (height, width, draw(st.sampled_from([1, 2, 3])))
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, 2))):
        size = draw(st.sampled_from([size for size in (1, 2, 3, 3, 5) if size <= min(height, width)]))
        stride, padding = draw(st.sampled_from([1, 1, 2])), draw(st.integers(0, size // 2))
        layers.append(Convolution(draw(st.sampled_from([1, 3, 4, 1, 3, 4, 35])), size, stride, padding))
        height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        if draw(st.booleans()):
            layers.append(BatchNorm(epsilon=draw(_VARIANCE_EPSILONS)))
        layers.append(Activation(draw(st.sampled_from(["gelu", "tanh"]))))
    pools = [size for size in (2, 2, 3, 4) if height % size == width % size == 0]
    if draw(st.booleans()) and pools:
        layers.append(MaxPool(draw(st.sampled_from(pools))))
    return (*layers, Flatten()), sample


@st.composite
def _heads(
    draw: st.DrawFn, framework: Framework, kind: str, inner: bool
) -> tuple[Heads, tuple[tuple[str, LossKind], ...]]:
    """Draw heads and losses; `inner`: whether layers precede them. No clause covers a float64 head on the inputs."""
    wide = inner and supports(framework, Capability.FLOAT64_HEADS) and kind in ("exact", "vectors")
    count = 1 if kind in ("tokens", "pictures") else draw(st.sampled_from([*[1, 1, 2] * 4, 3]))
    heads: list[Head] = []
    losses: list[tuple[str, LossKind]] = []
    for name in ("a", "b", "c")[:count]:
        loss: LossKind = "squared_error"
        if kind in ("tokens", "pictures") or draw(st.integers(0, 3)) < {"vectors": 2, "exact": 1}[kind]:
            loss = "cross_entropy"
        float64 = wide and loss == "squared_error" and draw(st.integers(0, 3)) == 0
        classes = [*(2, 3, 4) * 12, *_MANY_CLASSES]
        units = draw(st.sampled_from(classes if loss == "cross_entropy" else [1, 2, 3, 4]))
        alike = draw(st.booleans())
        units = heads[0].units if heads and heads[0].units > 1 and alike else units
        heads.append(Head(name, units, "float64" if float64 else "compute"))
        losses.append((name, loss))
    return Heads(tuple(heads)), tuple(losses)


@dataclass(frozen=True)
class _Habits:
    """Choices that apply to a whole program.

    Attributes:
        even: whether all micro-batches of a window have one size, so that it does not matter how they are weighted.
        head: the only head for which micro-batches have targets, "" for any.
        missing: place of the parameter without an external gradient, as a share of all; None for any or none.
    """

    even: bool = False
    head: str = ""
    missing: float | None = None


@st.composite
def _draw_habits(draw: st.DrawFn, framework: Framework, drawn: GeneratedModel, recipe: Recipe) -> _Habits:
    """Draw the habits of a program; most programs have none."""
    even = recipe.accumulation > 1 and draw(st.booleans())
    if not supports(framework, Capability.MISSING_GRADIENTS) or draw(st.integers(0, 3)):
        return _Habits(even)
    head = draw(st.sampled_from([name for name, _ in drawn.losses])) if len(drawn.losses) > 1 else ""
    return _Habits(even, head, draw(st.integers(0, 15)) / 16)


def _large_batches(drawn: GeneratedModel) -> list[int]:
    """Return sizes of large micro-batches for a model; a size that occurs more often is drawn more often."""
    widest = max(math.prod(shape) for shape in (drawn.sample, *drawn.model.output_shapes().values()))
    vectors = len(drawn.sample) == 1 and not drawn.integer_inputs
    return [*_LARGE_BATCHES * 2, *([_BEYOND_16_BITS] * 2 if vectors and widest <= max(_WIDTHS) else [])]


class _Batches:
    """Draws the micro-batches of programs for one model and recipe.

    Args:
        subnormal: whether inputs may be subnormal.
    """

    def __init__(
        self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, habits: _Habits, subnormal: bool
    ) -> None:
        self._drawn, self._habits = drawn, habits
        self._magnitudes = [*_MAGNITUDES, _SUBNORMAL] if subnormal else [*_MAGNITUDES]
        self._dynamic = scales_dynamically(recipe)
        self._normalised = any(isinstance(layer, BatchNorm) for _, layer in walk(drawn.layers))
        biased = framework.conventions().running_variance == "biased"
        self._small = _SMALL_BATCHES if self._normalised and not biased else (*_SMALL_BATCHES, 1)
        self._missing = supports(framework, Capability.MISSING_GRADIENTS)
        self._large = _large_batches(drawn)

    def draw_window(self, draw: st.DrawFn, count: int) -> tuple[GeneratedBatch, ...]:
        """Draw `count` micro-batches, at least one of which has an item."""
        micros = tuple(self._draw_micro_batch(draw) for _ in range(count))
        if self._drawn.exact and draw(st.booleans()):
            micros = tuple(
                replace(micro, size=size) for micro, size in zip(micros, self._draw_sizes(draw, count), strict=True)
            )
        if self._habits.even:
            micros = tuple(replace(micro, size=micros[0].size, mask="none") for micro in micros)
        if self._habits.head:
            micros = tuple(replace(micro, heads=(self._habits.head,)) for micro in micros)
        return micros if any(m.items(self._drawn) for m in micros) else (GeneratedBatch(2), *micros[1:])

    def draw_prediction_batch(self, draw: st.DrawFn) -> GeneratedBatch:
        """Draw a micro-batch for evaluation; sizes vary, and now and then magnitudes do, or all inputs are equal."""
        size = draw(st.sampled_from([1, 2, 3] * 5 + self._large))
        seed, rare = draw(st.integers(0, 9)), draw(st.integers(0, 7))
        if rare == 0 and not self._drawn.integer_inputs:
            return GeneratedBatch(size, seed, magnitude=draw(st.sampled_from(_MAGNITUDES)))
        return GeneratedBatch(size, seed, constant=rare == 1)

    def _draw_sizes(self, draw: st.DrawFn, count: int) -> list[int]:
        """Draw sizes whose sum is a power of two, so that means over a window are exact."""
        total = draw(st.sampled_from([total for total in (2, 4, 8, 32) if total >= count]))
        ends = sorted(draw(st.permutations(range(1, total)))[: count - 1])
        return [end - start for start, end in zip([0, *ends], [*ends, total], strict=True)]

    def _draw_micro_batch(self, draw: st.DrawFn) -> GeneratedBatch:
        seed, rare = draw(st.integers(0, 99)), draw(st.integers(0, 3 if self._normalised else 7))
        many = draw(st.integers(0, 23)) == 0
        size = draw(st.sampled_from(self._large if many else self._small))
        if not self._drawn.integer_inputs and rare < 2:
            spoilt = draw(st.sampled_from([math.inf, -math.inf, math.nan])) if self._dynamic and rare == 0 else None
            if rare == 1 and draw(st.booleans()):
                return GeneratedBatch(size, seed, constant=True)
            return GeneratedBatch(size, seed, magnitude=draw(st.sampled_from(self._magnitudes)), spoilt=spoilt)
        constant = self._drawn.integer_inputs and (rare < 2 or (many and draw(st.booleans())))
        if self._drawn.token_level:
            masks: list[MaskKind] = ["none", "ragged", "holes", "empty"]
            return GeneratedBatch(size, seed, draw(st.sampled_from(masks)), constant=constant)
        if self._missing and len(self._drawn.losses) > 1 and draw(st.integers(0, 3)) == 0:
            return GeneratedBatch(size, seed, heads=(draw(st.sampled_from([name for name, _ in self._drawn.losses])),))
        return GeneratedBatch(size, seed, constant=constant)


class _ExternalUpdates:
    """Draws update attempts from external gradients, for one model and recipe.

    Where the count of applied updates matters, every window has a gradient: no clause says whether one without counts.
    """

    def __init__(self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, habits: _Habits) -> None:
        self._dynamic = scales_dynamically(recipe)
        scale = recipe.scaling.initial if isinstance(recipe.scaling, DynamicScaling) and self._dynamic else None
        self._habits = habits
        self._count, self._two = recipe.accumulation, recipe.optimizers > 1
        self._largest = None if scale is None or recipe.clip is not None else _largest_gradient(recipe) / scale
        self._counted = recipe.schedule is not None or recipe.average is not None
        self._unscale = supports(framework, Capability.EXPLICIT_UNSCALE) and recipe.scaling is not None
        self._second_unscale = supports(framework, Capability.SECOND_UNSCALE)
        self._missing = supports(framework, Capability.MISSING_GRADIENTS)
        wide = any(head.format == "float64" for head in drawn.model.heads.heads)
        self._beyond = [_INFINITE_IN_FLOAT32] * 3 if wide else []
        sizes = [math.prod(shape) for shape in drawn.model.parameter_shapes().values()]
        self._large = max(sizes) >= _BEYOND_16_BITS
        self._longest = _MANY_UPDATES if recipe.accumulation == 1 and not self._large else _SEVERAL_UPDATES
        self._places = [i / 16 for i in range(16)] + [sizes.index(max(sizes)) / len(sizes)] * 8

    def draw_attempt(self, draw: st.DrawFn) -> ApplyGradients:
        """Draw one attempt, or several in a row."""
        window = tuple(self._draw_gradient(draw) for _ in range(self._count))
        if self._large and self._dynamic and draw(st.booleans()):
            window = self._with_last_value_nonfinite(draw)
        if self._missing and not self._counted and draw(st.integers(0, 11)) == 0:
            return ApplyGradients((SpikedGradient(0.0, nothing=True),) * len(window))
        if not self._unscale:
            return ApplyGradients(
                window, times=draw(st.sampled_from([1] * 12 + [_SEVERAL_UPDATES] * 3 + [self._longest]))
            )
        match draw(st.sampled_from(["plain", "plain", "plain", "by-hand", "twice", "abandon", "poison", "often"])):
            case "by-hand":
                return ApplyGradients(window, unscale_calls=1)
            case "twice":
                return ApplyGradients(window, unscale_calls=2 if self._second_unscale else 1)
            case "abandon":
                return ApplyGradients(self._overflowing(draw, window), discard=True)
            case "poison":
                inject = SpikedGradient(0.0, (Spike(draw(st.sampled_from([math.inf, math.nan, 0.5])), 0.5, 0.5),))
                return ApplyGradients(tuple(replace(gradient, missing=None) for gradient in window), inject=inject)
            case "often":
                return ApplyGradients(window, times=draw(st.sampled_from([_SEVERAL_UPDATES] * 3 + [self._longest])))
            case _:
                return ApplyGradients(window)

    def _with_last_value_nonfinite(self, draw: st.DrawFn) -> tuple[SpikedGradient, ...]:
        """Draw a window with a single value that is not finite: the last one of the largest parameter."""
        spike = Spike(draw(st.sampled_from([math.inf, math.nan])), self._places[-1], _END)
        plain = SpikedGradient(0.25, missing=self._habits.missing)
        return (*[plain] * (self._count - 1), replace(plain, spikes=(spike,)))

    def _overflowing(self, draw: st.DrawFn, window: tuple[SpikedGradient, ...]) -> tuple[SpikedGradient, ...]:
        """Return the window or, with two optimizers, often draw one in which only a single parameter overflows."""
        if not (self._two and self._dynamic and draw(st.booleans())):
            return window
        return (SpikedGradient(0.25, (Spike(math.inf, draw(st.sampled_from(self._places)), 0.5),)), *window[1:])

    def _draw_gradient(self, draw: st.DrawFn) -> SpikedGradient:
        base = draw(st.sampled_from([0.0, 0.25, 0.3, 1.0, -0.5, 2.0**-14, 2.0**-24]))
        if self._largest is not None and draw(st.integers(0, 15)) == 0:
            return SpikedGradient(self._largest)
        overflowing = [math.inf, -math.inf, math.nan, 2.0**127, -(2.0**120), 2.0**15, *self._beyond]
        values = [*(overflowing if self._dynamic else [2.0**10]), 1.0, 2.0**-20]
        elements = st.sampled_from([0.0, 0.3, 0.5, _END])
        spike = st.builds(Spike, st.sampled_from(values), st.sampled_from(self._places), elements)
        spikes = draw(st.lists(spike, max_size=2 if self._large or draw(st.booleans()) else 0))
        missing = self._habits.missing
        if missing is None and self._missing:
            missing = draw(st.sampled_from([None, None, None, 0.0, 0.5, 0.99]))
        return SpikedGradient(base, tuple(spikes), missing)


def _largest_gradient(recipe: Recipe) -> float:
    """Return the largest power of two that a gradient can hold; the sum of two such gradients is infinite."""
    narrow = recipe.precision.level in ("O2", "O3") and recipe.precision.format == "float16"
    return 2.0**15 if narrow else 2.0**127


@st.composite
def _programs(draw: st.DrawFn, steps: _Steps) -> tuple[Verb, ...]:
    verbs: list[Verb] = [StartAgain()]
    chosen = draw(_repertoires(steps))
    saved_slots: set[int] = set()
    for _ in range(draw(st.integers(1, _MOST_STEPS))):
        candidates = [word for word in steps.list_candidates(bool(saved_slots)) if word in chosen]
        step = draw(st.sampled_from(candidates))
        drawn = steps.draw_verbs(draw, step, sorted(saved_slots))
        slots = {verb.slot for verb in drawn if isinstance(verb, Save)}
        # A window saves only while it is open.
        saved_slots = saved_slots - slots if step == "window" else saved_slots | slots
        verbs += drawn
    return tuple(verbs)


@st.composite
def _repertoires(draw: st.DrawFn, steps: _Steps) -> frozenset[str]:
    """Draw the kinds of steps in a program: all, or a few, which then follow each other more often.

    Source: Groce et al., "Swarm testing", ISSTA 2012.
    """
    every = sorted({*steps.list_candidates(saved=True)})
    if draw(st.integers(0, 3)) == 0:
        return frozenset(every)
    updates = [word for word in every if word in ("train", "feed", "window")]
    few = draw(st.lists(st.sampled_from(every), min_size=1, max_size=4))
    loads = draw(st.sampled_from([{"save"}, {"save", "restore"}, {"save", "restore", "start-again"}]))
    return frozenset({draw(st.sampled_from(updates)), *few, *(loads & {*every})})


def _repeat(*weights: tuple[W, int]) -> list[W]:
    """Return each word as often as its weight says; a weight may be a bool."""
    return [word for word, weight in weights for _ in range(weight)]


@st.composite
def cases(draw: st.DrawFn, framework: Framework, dropout: bool = False, subnormal: bool = False) -> GeneratedCase:
    """Draw a model, a recipe and a program.

    Args:
        subnormal: whether inputs may be subnormal; some frameworks flush them to zero.
    """
    drawn = draw(models(framework, dropout))
    recipe = draw(recipes(framework, drawn))
    chosen = draw(_draw_habits(framework, drawn, recipe))
    return limit_files(
        GeneratedCase(drawn, recipe, draw(_programs(_Steps(framework, drawn, recipe, chosen, subnormal))))
    )


def limit_files(case: GeneratedCase) -> GeneratedCase:
    """Return the case, offloaded to the host if its many updates would write thousands of files."""
    if not any(isinstance(verb, Train | ApplyGradients) and verb.times > _SEVERAL_UPDATES for verb in case.program):
        return case
    case = case.loaded_under(lambda under: replace(under, offload=_to_host(under.offload)))
    return replace(case, recipe=case.recipe.replace(offload=_to_host(case.recipe.offload)))


def _to_host(offload: Offload | None) -> Offload | None:
    return None if offload is None else replace(offload, to="host")


def _list_overrides(framework: Framework, recipe: Recipe) -> list[RestoreOverrides]:
    """Return the overrides under which a save may be restored: other ranks or another offload than the run's own."""
    ranks, offloads = recipe.ranks, [None, *techniques_of(framework).offloads]
    overrides = [RestoreOverrides(ranks, offload) for offload in offloads if offload != recipe.offload]
    if ranks is None or not supports(framework, Capability.RANKS_RESHAPE):
        return overrides
    counts = [Ranks(count, ranks.level, reduce=ranks.reduce) for count in (1, 2, 3, 4) if count != ranks.count]
    return overrides + [RestoreOverrides(other, recipe.offload) for other in counts] * 4


class _Steps:
    """Draws the steps of programs for one model and recipe.

    Args:
        subnormal: whether inputs may be subnormal.
    """

    def __init__(
        self, framework: Framework, drawn: GeneratedModel, recipe: Recipe, habits: _Habits, subnormal: bool
    ) -> None:
        self._drawn, self._recipe = drawn, recipe
        self._batches = _Batches(framework, drawn, recipe, habits, subnormal)
        self._external_updates = _ExternalUpdates(framework, drawn, recipe, habits)
        self._by_itself = ends_by_itself(framework.conventions())
        partial = recipe.accumulation > 1 and supports(framework, Capability.PARTIAL_WINDOW)
        self._flushes = partial and not self._by_itself
        self._accumulates = supports(framework, Capability.ACCUMULATION)
        self._dynamic = scales_dynamically(recipe)
        self._feed, self._checkpoint = supports(framework, Capability.FEED), supports(framework, Capability.CHECKPOINT)
        self._trace = supports(framework, Capability.TRACE) and recipe.recompute is None
        self._count = supports(framework, Capability.SAVED_BYTES)
        # A batch norm of one value accepts wider inputs: its parameters broadcast over them.
        any_width = isinstance(drawn.layers[0], BatchNorm) and drawn.sample == (1,)
        self._breaks = not (drawn.token_level or drawn.integer_inputs or any_width)
        self._overrides = _list_overrides(framework, recipe)
        offload = recipe.offload
        self._offloaded = offload is not None and offload.to == "disk" and offload.what != ("activations",)
        self._scope_formats = scope_formats(framework)

    def list_candidates(self, saved: bool) -> list[str]:
        """Return candidates for the next step, repeated by weight; `saved`: whether a slot holds a run."""
        averages = self._recipe.average is not None
        return _repeat(
            *(("train", 3), ("gradients", 1), ("predict", 1), ("start-again", 1)),
            *(("window", 2 * self._accumulates), ("feed", 3 * self._feed), ("save", self._checkpoint)),
            *(("restore", 2 * saved), ("damaged", saved), ("trace", self._trace)),
            *(("damage-offloaded", 2 * self._offloaded), ("bytes", self._count)),
            *(("averaged", 2 * averages), ("train-averaged", averages), ("relay", self._checkpoint)),
            *(("break", self._breaks), ("break-update", self._breaks), ("scope", bool(self._scope_formats))),
        )

    def draw_verbs(self, draw: st.DrawFn, step: str, saved: list[int]) -> list[Verb]:
        """Draw the verbs of a step; `saved` lists the slots that hold a run between two windows."""
        match step:
            case "window":
                return self._draw_window(draw)
            case "save":
                return [*self._draw_look(draw), Save(draw(_SLOTS))]
            case "feed":
                return self._draw_gradients(draw)
            case "restore":
                slot, into = draw(st.sampled_from(saved)), draw(st.sampled_from(self._list_targets()))
                under = draw(st.sampled_from([None, *self._overrides])) if into != "same" else None
                return [Restore(slot, into, under), *self._draw_look(draw)]
            case "damaged":
                return [self._draw_damage(draw, draw(st.sampled_from(saved)))]
            case "train-averaged":
                return [self._draw_verb(draw, "train"), self._draw_verb(draw, "averaged")]
            case "relay":
                return self._draw_relay(draw)
        return [self._draw_verb(draw, step)]

    def _draw_relay(self, draw: st.DrawFn) -> list[Verb]:
        """Draw a run that loads another run's weights at the same count of updates, with evaluations around it."""
        slot, averaged = draw(_SLOTS), self._recipe.average is not None and draw(st.booleans())
        look = Predict(self._batches.draw_prediction_batch(draw), averaged)
        train = [self._draw_verb(draw, "train") for _ in range(2)]
        return [train[0], Save(slot), StartAgain(), train[1], look, Restore(slot, "same"), look]

    def _draw_look(self, draw: st.DrawFn) -> list[Verb]:
        """Draw verbs right before a save or after a load: often none, otherwise one that reads the run."""
        averages = self._recipe.average is not None
        looks = _repeat(("averaged", 3 * averages), ("predict", 1), ("gradients", 1), ("trace", self._trace))
        return [self._draw_verb(draw, draw(st.sampled_from(looks)))] if draw(st.booleans()) else []

    def _draw_verb(self, draw: st.DrawFn, step: str) -> Verb:
        match step:
            case "train":
                return Train(self._batches.draw_window(draw, self._recipe.accumulation))
            case "gradients":
                return Gradients(self._batches.draw_window(draw, draw(st.integers(1, self._recipe.accumulation))))
            case "predict" | "averaged":
                return Predict(self._batches.draw_prediction_batch(draw), step == "averaged")
            case "start-again":
                return StartAgain(draw(st.integers(0, 3)) == 0)
            case "trace":
                return TraceLayers(*self._batches.draw_window(draw, 1))
            case "bytes":
                return CountBytes(GeneratedBatch(draw(st.integers(2, 4)), draw(st.integers(0, 9))))
            case "damage-offloaded":
                places = st.sampled_from([0.0, 0.3, 0.6, 0.99])
                return DamageOffloaded(draw(places), draw(st.none() | places))
            case "break":
                averages = self._recipe.average is not None
                ways: list[Way] = _repeat(("accumulate", 1), ("predict", 1), ("averaged", 2 * averages))
                return WrongWidth(GeneratedBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(ways)))
            case "break-update":
                ways = _repeat(("update", 1), ("gradients", 1), ("trace", self._trace), ("bytes", self._count))
                return WrongWidth(GeneratedBatch(2, draw(st.integers(0, 9))), draw(st.sampled_from(ways)))
            case _:
                return OpenScope(draw(st.sampled_from(self._scope_formats)), draw(st.booleans()), draw(st.booleans()))

    def _list_targets(self) -> list[Target]:
        possible = {"skipped": self._dynamic and self._feed, "stopped": self._recipe.accumulation > 1}
        return [target for target in TARGETS if possible.get(target, True)]

    def _draw_window(self, draw: st.DrawFn) -> list[Verb]:
        """Draw a window of single micro-batches, with other verbs between them, that is ended or flushed."""
        k = self._recipe.accumulation
        count = draw(st.integers(1, k)) if self._flushes else k
        micros = self._batches.draw_window(draw, count)
        items = sum(micro.items(self._drawn) for micro in micros)
        verbs: list[Verb] = []
        for index, micro in enumerate(micros):
            if index:
                verbs += self._draw_between(draw, micro, items, ends_window=index == k - 1)
            verbs.append(Accumulate(micro, items))
        if not self._by_itself:
            verbs += self._draw_between(draw, micros[-1], items, ends_window=True)
        return [*verbs, Apply(flush=count < k)]

    def _draw_between(self, draw: st.DrawFn, micro: GeneratedBatch, items: int, *, ends_window: bool) -> list[Verb]:
        """Draw a verb within a window that changes nothing.

        Args:
            micro: the next micro-batch of the window, which has `items` items.
            ends_window: whether that micro-batch is the last one.
        """
        steps = _repeat(
            *(("nothing", 2), ("predict", 1), ("save", 2 * self._checkpoint), ("damaged", self._checkpoint)),
            *(("averaged", self._recipe.average is not None), ("break", self._breaks)),
            *(("trace", self._trace), ("bytes", self._count)),
        )
        match draw(st.sampled_from(steps)):
            case "nothing":
                return []
            case "save":
                slot = draw(_SLOTS)
                into = draw(st.sampled_from(self._list_targets()))
                again: list[Verb] = [Accumulate(micro, items)] if draw(st.booleans()) and not ends_window else []
                return [Save(slot), *again, Restore(slot, into)]
            case "damaged":
                slot = draw(_SLOTS)
                return [Save(slot), self._draw_damage(draw, slot)]
            case step:
                return [self._draw_verb(draw, step)]

    def _draw_damage(self, draw: st.DrawFn, slot: int) -> RestoreDamaged:
        damages: list[Damage] = ["cut", "foreign", "missing"]
        return RestoreDamaged(slot, draw(st.sampled_from(damages)), draw(st.sampled_from([0.0, 0.5, 0.99])))

    def _draw_gradients(self, draw: st.DrawFn) -> list[Verb]:
        """Draw an attempt from external gradients; a save and a load follow `_MANY_UPDATES` of them."""
        feed, slot = self._external_updates.draw_attempt(draw), draw(_SLOTS)
        if feed.times < _MANY_UPDATES or not self._checkpoint:
            return [feed]
        return [feed, Save(slot), Restore(slot, draw(st.sampled_from(self._list_targets())))]
