"""TensorFlow's automatic mixed precision: the same graph, rewritten and not."""

from __future__ import annotations

from conformance.scenarios.digits_accumulation import digits_setting
from conformance.scenarios.scenario import Scenario, Side, accuracy
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, DynamicScaling, Recipe

_PLAIN = Recipe(SGD(0.05, momentum=0.9))

GRAPH_REWRITE = Scenario(
    name="graph-rewrite",
    title="784-512-256-128-10 in a graph of float32 layers, as it is and rewritten by grappler",
    source="TensorFlow's automatic mixed precision, by option",
    setting=digits_setting,
    sides=(
        Side("graph", _PLAIN),
        Side("rewritten float16", _PLAIN.replace(precision=FLOAT16, scaling=DynamicScaling())),
        Side("rewritten bfloat16", _PLAIN.replace(precision=BFLOAT16)),
    ),
    batch=64,
    epochs=3,
    learns_in=23,
    quality=accuracy(),
    modes={"tf": "rewrite"},
    only="no other framework rewrites a float32 graph",
)
