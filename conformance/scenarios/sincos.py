"""Sine and cosine by one network of two heads: float32 and mixed precision."""

from __future__ import annotations

from conformance.scenarios.scenario import Scenario, Setting, Side, squared_error
from fixtures import data, models
from fixtures.recipe import BFLOAT16, FLOAT16, Adam, DynamicScaling, Recipe

_PLAIN = Recipe(Adam(1e-2))


def _setting() -> Setting:
    about = "20,000 noisy points of sine and cosine, 2,000 others for the test"
    return Setting(models.sincos(), data.sincos_batch(), data.sincos_batch(2_000, seed=1), about)


SINCOS = Scenario(
    name="sincos",
    title="Two float64 heads for sine and cosine, width 150, Adam 1e-2: float32 against mixed precision",
    source="the mixed-precision example: 20,000 points, 1,000 epochs",
    setting=_setting,
    sides=(
        Side("plain", _PLAIN),
        Side("mixed float16", _PLAIN.replace(precision=FLOAT16, scaling=DynamicScaling())),
        Side("mixed bfloat16", _PLAIN.replace(precision=BFLOAT16)),
    ),
    batch=20_000,
    epochs=1_000,
    learns_in=60,
    shorter={"cpu": 60, "emulated": 5},
    quality=squared_error(),
    published={("mixed float16", "time ÷ plain's"): "0.68 (1.46 × as fast)"},
)
