"""Handwritten digits with and without gradient accumulation."""

from __future__ import annotations

import os

from conformance.scenarios.scenario import Scenario, Setting, Side, accuracy
from fixtures import data, models
from fixtures.recipe import Adam, Recipe

_PLAIN = Recipe(Adam(1e-3))


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
        Side("128 at once", _PLAIN),
        Side("4 × 32, flushed", _PLAIN.replace(accumulation=4), micro=32),
        Side("4 × 32, whole windows", _PLAIN.replace(accumulation=4), micro=32, whole=True),
        Side("32, no accumulation", _PLAIN, micro=32),
    ),
    batch=128,
    epochs=2,
    shorter={"emulated": 12},
    learns_in=12,
    quality=accuracy(),
)
