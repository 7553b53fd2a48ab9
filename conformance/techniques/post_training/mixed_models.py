"""Models of mixed layers that the suites of post-training quantization quantize, and their calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from conformance.checks.subject import Subject, need
from conformance.techniques.post_training.checks import unlike_weights
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Head, Heads, LayerNorm
from fixtures.model import Model
from frameworks.contract import Capability, LinearRule, PostTraining, QuantizedModel

TECHNIQUES = ("dynamic-int8", "static-int8", "weight-int8", "weight-int4", "load-int8")
DYNAMIC, STATIC = TECHNIQUES[:2]
each_technique = pytest.mark.parametrize("technique", TECHNIQUES)
LAYERS = (Dense(33), Activation("relu"), LayerNorm(), Dense(17), Activation("tanh"), Heads((Head("output", 5),)))
MIXED = Model("mixed", LAYERS, (160,), (("output", "squared_error"),))
"""Sizes that no group divides, and a norm between layers."""
ROWS = 9


def mixed(rule: LinearRule) -> Model:
    """`MIXED`, or where small weights stay as they are, a model of such sizes that every layer but one head has codes.

    The weight of its other head has as many entries as it needs for codes, and no more, where 32 divides that.
    """
    if not rule.smallest:
        return MIXED
    fewest = -(-rule.smallest // 32)
    heads = Heads((Head("output", max(5, fewest)), Head("small", min(5, max(1, fewest - 1)))))
    layers = (Dense(max(33, fewest + 1)), *LAYERS[1:3], Dense(32), LAYERS[4], heads)
    return Model("large", layers, MIXED.sample, tuple((head.name, "squared_error") for head in heads.heads))


def foreign(model: Model, how: str) -> Model:
    """A model unlike the given one: its first layers, or its only dense layer, have another output width."""
    first, *between, heads = model.layers
    assert isinstance(first, Dense)
    assert isinstance(heads, Heads)
    if how == "other-shape":
        return replace(model, name="wider", layers=(replace(first, units=first.units + 1), *between, heads))
    head, *others = heads.heads
    wider = replace(heads, heads=(replace(head, units=head.units + 1), *others))
    return replace(model, name="wider", layers=(first, *between, wider))


def rule_of(subject: Subject, technique: str) -> LinearRule:
    """The declared rule of a technique; ends the test if there is none."""
    need(subject, Capability(f"quantization.{technique}"))
    return subject.framework.rule(PostTraining).rules()[technique]


def batches(model: Model, seed: int = 0) -> tuple[Array, ...]:
    """Three batches of samples, the largest values in the second."""
    rng = np.random.default_rng([seed, 4])
    drawn = (rng.standard_normal((size, *model.sample)) for size in (7, 5, 8))
    return tuple((values * factor).astype(np.float32) for values, factor in zip(drawn, (1.0, 3.0, 0.5), strict=True))


def made(
    subject: Subject, technique: str, model: Model | None = None, seed: int = 0, **more: Sequence[str]
) -> QuantizedModel:
    """The quantized and calibrated model, by default the one for the technique, with its own weights."""
    given = subject.framework.rule(PostTraining)
    model = model or mixed(given.rules()[technique])
    return given.quantized(technique, model, unlike_weights(model, seed), batches(model, seed), **more)


def refused(make: Callable[[], QuantizedModel], samples: Array) -> tuple[str, dict[str, Array]]:
    """The message that refuses a model, or "" and its predictions."""
    try:
        return "", make().predict(samples)
    except Exception as error:
        return f"{type(error).__name__}: {error}", {}
