"""The calls by which a backend of Keras makes updates, for attempts and measured settings."""

from collections.abc import Sequence
from typing import Protocol

import keras
import numpy as np


class KerasBackend(Protocol):
    """One backend, as its guide to custom training loops calls Keras."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar float32 weights by these gradients; the optimizer is built."""


def scalars(count: int = 2, value: float = 1.0) -> list[keras.Variable]:
    """So many weights with this value."""
    return [keras.Variable(np.full((), value, np.float32), name=f"weight_{i}") for i in range(count)]


def number(variable: keras.Variable) -> float:
    """The value of a scalar variable."""
    return float(keras.ops.stop_gradient(variable.value))


def applied(
    backend: KerasBackend,
    optimizer: keras.optimizers.Optimizer,
    *gradients: Sequence[float],
    weights: Sequence[keras.Variable] | None = None,
) -> list[list[float]]:
    """Two weights, at 1 before, after each update by a pair of gradients."""
    given = scalars() if weights is None else weights
    optimizer.build(given)
    values = []
    for pair in gradients:
        backend.apply(optimizer, pair, given)
        values.append([number(weight) for weight in given])
    return values
