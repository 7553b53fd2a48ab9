"""Keras' process-wide settings, and updates of scalar weights for attempts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import keras
import numpy as np

from fixtures.recipe import Precision


@contextmanager
def dtype_policy(policy: str | keras.DTypePolicy) -> Iterator[None]:
    """A scope in which new layers have this dtype policy, given itself or by name."""
    former = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(former)


def policy_of(precision: Precision) -> str:
    """Name of a precision's dtype policy."""
    if precision.level == "O0":
        return "float32"
    return f"mixed_{precision.format}" if precision.level == "O1" else precision.format


def read_settings() -> dict[str, str]:
    """Every setting that `write_settings` can restore, and the distribution, by name."""
    return {
        "keras-policy": keras.config.dtype_policy().name,
        "keras-floatx": keras.config.floatx(),
        "keras-epsilon": repr(keras.config.epsilon()),
        "keras-image-data-format": keras.config.image_data_format(),
        "keras-distribution": repr(keras.distribution.distribution()),
    }


def write_settings(state: Mapping[str, str]) -> None:
    """Restores settings that `read_settings` returned. Of the distribution only its absence can be restored."""
    keras.config.set_dtype_policy(state["keras-policy"])
    keras.config.set_floatx(state["keras-floatx"])
    keras.config.set_epsilon(float(state["keras-epsilon"]))
    keras.config.set_image_data_format(state["keras-image-data-format"])
    if state["keras-distribution"] == repr(None):
        keras.distribution.set_distribution(None)


class KerasBackend(Protocol):
    """One backend, which calls Keras as its guide to custom training loops does."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """Makes one update of scalar float32 weights by these gradients; the optimizer is already built."""


def scalars(count: int = 2, value: float = 1.0) -> list[keras.Variable]:
    """Scalar float32 weights: `count` variables with this value."""
    return [keras.Variable(np.full((), value, np.float32), name=f"weight_{i}") for i in range(count)]


def number(variable: keras.Variable) -> float:
    """The value of a scalar variable."""
    return float(keras.ops.stop_gradient(variable.value))


def apply_updates(
    backend: KerasBackend,
    optimizer: keras.optimizers.Optimizer,
    *gradients: Sequence[float],
    weights: Sequence[keras.Variable] | None = None,
) -> list[list[float]]:
    """The values of two weights, initially 1, after each update by a pair of gradients."""
    variables = scalars() if weights is None else weights
    optimizer.build(variables)
    values = []
    for pair in gradients:
        backend.apply(optimizer, pair, variables)
        values.append([number(weight) for weight in variables])
    return values
