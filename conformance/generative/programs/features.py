"""Features of a case, which coverage counts and exclusions name."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from conformance.generative.programs.case import (
    Accumulate,
    Apply,
    ApplyGradients,
    CountBytes,
    GeneratedBatch,
    GeneratedCase,
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
from fixtures.model import Activation, BatchNorm, Layer, SelfAttention, walk
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Recipe, Scaling, StaticScaling, Steps

LARGE = 10**5
"""Smallest number of values of a large parameter."""
MANY = 64
"""Smallest number of samples of a large micro-batch, or of all positions of their sequences."""
HUGE, BIG, TINY = 2.0**14, 2.0**6, 2.0**-13
"""Magnitudes from which values count as huge and as large, and up to which they count as tiny."""
SMALLEST_NORMAL = -126
"""Exponent of the smallest normal number of float32."""


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
