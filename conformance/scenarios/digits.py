"""784-512-256-128-10 on handwritten digits: gradient accumulation, apex's levels O0 to O3, a rewritten graph."""

from __future__ import annotations

import os

from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy
from fixtures import data, models
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Adam, DynamicScaling, Precision, Recipe

_ADAM = Recipe(Adam(1e-3))
_MOMENTUM = Recipe(SGD(0.05, momentum=0.9))


def digits_setting() -> Setting:
    """784-512-256-128-10 on handwritten digits, every fifth of them, at most 10,000, for the test."""
    count = len(data.digits()[0])
    tested = min(count // 5, 10_000)
    kind = "MNIST" if os.environ.get(data.MNIST_FOLDER) else "scikit-learn's digits at 28×28"
    train, test = data.digits_batch(count - tested), data.digits_batch(tested, count - tested)
    return Setting(models.digits_mlp(), train, test, f"{kind}, {count - tested:,}, and {tested:,} for the test")


DIGITS_ACCUMULATION = Scenario(
    name="digits-accumulation",
    title="784-512-256-128-10, Adam 1e-3: batches of 32, four of them accumulated, and their 128 samples at once",
    source="the accumulation example: batch 32, k = 4, 2 epochs, the last window flushed",
    setting=digits_setting,
    sides=(
        Side("128 at once", _ADAM),
        Side("4 × 32, flushed", _ADAM.replace(accumulation=4), micro=32),
        Side("4 × 32, whole windows", _ADAM.replace(accumulation=4), micro=32, whole=True),
        Side("32, no accumulation", _ADAM, micro=32),
    ),
    batch=128,
    epochs=2,
    shorter={"emulated": 12},
    learns_in=12,
    quality=accuracy(),
)

OPT_LEVELS = Scenario(
    name="opt-levels",
    title="784-512-256-128-10 with momentum at apex's levels, float16; the scale is dynamic at O1 and O2",
    source="apex: amp.initialize(opt_level=...) and scale_loss",
    setting=digits_setting,
    sides=(
        Side("O0", _MOMENTUM),
        Side("O1", _MOMENTUM.replace(precision=Precision("O1", "float16"), scaling=DynamicScaling())),
        Side("O2", _MOMENTUM.replace(precision=Precision("O2", "float16"), scaling=DynamicScaling())),
        Side("O3", _MOMENTUM.replace(precision=Precision("O3", "float16"))),
    ),
    batch=64,
    epochs=3,
    shorter={"emulated": 23},
    learns_in=23,
    quality=accuracy(),
)

GRAPH_REWRITE = Scenario(
    name="graph-rewrite",
    title="784-512-256-128-10 in a graph of float32 layers, as it is and rewritten by grappler",
    source="TensorFlow's automatic mixed precision, by option",
    setting=digits_setting,
    sides=(
        Side("graph", _MOMENTUM),
        Side("rewritten float16", _MOMENTUM.replace(precision=FLOAT16, scaling=DynamicScaling())),
        Side("rewritten bfloat16", _MOMENTUM.replace(precision=BFLOAT16)),
    ),
    batch=64,
    epochs=3,
    learns_in=23,
    quality=accuracy(),
    modes={"tf": "rewrite"},
    only="no other framework rewrites a float32 graph",
)
