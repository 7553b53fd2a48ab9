"""The work that is timed: training steps, and work of another kind to hold it against.

A sample of one side is STEPS steps; a sample of the slower side is SLOWER steps, 5 % more of exactly the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad

STEPS = 20
SLOWER = 21
BATCH, PIXELS, WIDTH, CLASSES = 16, 784, 16, 10
RATE = 0.01

Work = Callable[[], None]


def training(steps: int, seed: int, recomputing: bool = False) -> Work:
    """`steps` updates by gradient descent of a 784-16-10 network of its own on 16 made images, in float64 by autograd.

    Args:
        recomputing: pass forward once more before every gradient.
    """
    rng = np.random.default_rng(seed)
    images = rng.uniform(0.0, 1.0, (BATCH, PIXELS))
    labels = np.eye(CLASSES)[rng.integers(0, CLASSES, BATCH)]
    weights = [rng.normal(0.0, 0.05, (PIXELS, WIDTH)), rng.normal(0.0, 0.05, (WIDTH, CLASSES))]

    def loss(first: Any, second: Any) -> Any:
        errors = anp.dot(anp.maximum(anp.dot(images, first), 0.0), second) - labels
        return anp.sum(errors * errors) / BATCH

    gradient = grad(loss, (0, 1))

    def work() -> None:
        for _ in range(steps):
            if recomputing:
                loss(*weights)
            for weight, slope in zip(weights, gradient(*weights), strict=True):
                weight -= RATE * slope

    return work


def foreign(seed: int) -> Work:
    """NumPy work of about a third of a training sample: products, sums and maxima of float64 matrices, no autograd."""
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(BATCH, PIXELS)), rng.normal(size=(PIXELS, WIDTH))

    def work() -> None:
        for _ in range(100):
            hidden = np.maximum(left @ right, 0.0)
            float((hidden - hidden.mean(axis=0)).sum())

    return work
