"""Three linear layers, recomputed in two segments."""

from __future__ import annotations

import numpy as np

from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy
from fixtures.layers import Activation, Dense, Head, Heads, Layer
from fixtures.model import Batch, Model
from fixtures.recipe import SGD, Recipe, Recompute

WIDTH, CLASSES = 512, 10
SEGMENTED = "two segments"
_PLAIN = Recipe(SGD(0.05))


def _batch(size: int, seed: int) -> Batch:
    """Points around one centre a class: inputs (size, WIDTH) float32, labels (size)."""
    centres = np.random.default_rng(20).standard_normal((CLASSES, WIDTH))
    rng = np.random.default_rng([seed, 21])
    labels = rng.integers(0, CLASSES, size)
    points = centres[labels] + 2.0 * rng.standard_normal((size, WIDTH))
    return Batch(points.astype(np.float32), {"output": labels})


def _setting() -> Setting:
    linear: tuple[Layer, ...] = (Dense(WIDTH), Activation("gelu"))
    layers = (*linear, *linear, *linear, Heads((Head("output", CLASSES),)))
    model = Model("three-linear", layers, (WIDTH,), (("output", "cross_entropy"),))
    return Setting(model, _batch(5_120, 0), _batch(1_000, 1), "5,120 points around ten centres, 1,000 for the test")


SEGMENTS = Scenario(
    name="segments",
    title=f"Three linear layers of width {WIDTH} with GELU, recomputed in two segments against not at all",
    source="the gradient-checkpointing example: segments=2",
    setting=_setting,
    sides=(Side("plain", _PLAIN), Side(SEGMENTED, _PLAIN.replace(recompute=Recompute(2)), equal=True)),
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
