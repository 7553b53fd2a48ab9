"""The guides' examples: mixed precision on sine and cosine, and recomputation of linear layers in segments."""

from __future__ import annotations

import numpy as np

from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy, squared_error
from fixtures import data, models
from fixtures.layers import Activation, Dense, Head, Heads, Layer
from fixtures.model import Batch, Model
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Adam, DynamicScaling, Recipe, Recompute

_TWO_HEADS = Recipe(Adam(1e-2))

WIDTH, CLASSES = 512, 10
SEGMENTED = "two segments"
_THREE_LAYERS = Recipe(SGD(0.05))


def _points() -> Setting:
    about = "20,000 noisy points of sine and cosine, 2,000 others for the test"
    return Setting(models.sincos(), data.sincos_batch(), data.sincos_batch(2_000, seed=1), about)


SINCOS = Scenario(
    name="sincos",
    title="Two float64 heads for sine and cosine, width 150, Adam 1e-2: float32 against mixed precision",
    source="the mixed-precision example: 20,000 points, 1,000 epochs",
    setting=_points,
    sides=(
        Side("plain", _TWO_HEADS),
        Side("mixed float16", _TWO_HEADS.replace(precision=FLOAT16, scaling=DynamicScaling())),
        Side("mixed bfloat16", _TWO_HEADS.replace(precision=BFLOAT16)),
    ),
    batch=20_000,
    epochs=1_000,
    learns_in=60,
    shorter={"cpu": 60, "emulated": 5},
    quality=squared_error(),
    published={("mixed float16", "time ÷ plain's"): "0.68 (1.46 × as fast)"},
)


def _batch(size: int, seed: int) -> Batch:
    """Points around one centre a class: inputs (size, WIDTH) float32, labels (size)."""
    centres = np.random.default_rng(20).standard_normal((CLASSES, WIDTH))
    rng = np.random.default_rng([seed, 21])
    labels = rng.integers(0, CLASSES, size)
    points = centres[labels] + 2.0 * rng.standard_normal((size, WIDTH))
    return Batch(points.astype(np.float32), {"output": labels})


def _classes() -> Setting:
    linear: tuple[Layer, ...] = (Dense(WIDTH), Activation("gelu"))
    layers = (*linear, *linear, *linear, Heads((Head("output", CLASSES),)))
    model = Model("three-linear", layers, (WIDTH,), (("output", "cross_entropy"),))
    return Setting(model, _batch(5_120, 0), _batch(1_000, 1), "5,120 points around ten centres, 1,000 for the test")


SEGMENTS = Scenario(
    name="segments",
    title=f"Three linear layers of width {WIDTH} with GELU, recomputed in two segments against not at all",
    source="the gradient-checkpointing example: segments=2",
    setting=_classes,
    sides=(Side("plain", _THREE_LAYERS), Side(SEGMENTED, _THREE_LAYERS.replace(recompute=Recompute(2)), equal=True)),
    batch=256,
    epochs=4,
    shorter={"emulated": 20},
    learns_in=20,
    quality=accuracy(),
    published={
        (SEGMENTED, "bytes ÷ plain's"): "0.4 to 0.5",
        (SEGMENTED, "time ÷ plain's"): "1.15 to 1.25",
        (SEGMENTED, "distance from plain's parameters"): "0",
    },
)
