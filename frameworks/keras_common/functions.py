"""An operation whose backward pass a user wrote, by Keras' call for it on every backend."""

from typing import Any

import keras

from frameworks.contract import FunctionFormat
from frameworks.keras_common.layer_outputs import Tensor

WAYS: dict[str, FunctionFormat] = {"keras.ops.custom_gradient": "input"}


@keras.ops.custom_gradient
def square(x: Tensor) -> Any:
    """The operation of `fixtures.layers.UserFunction` and its backward pass, as the call's documentation writes it."""

    def gradient(*upstream_alone: Tensor, upstream: Tensor | None = None) -> Tensor:
        if upstream is None:
            (upstream,) = upstream_alone
        return upstream * keras.ops.clip(2.0 * x, -1.0, 1.0)

    return x * x, gradient
