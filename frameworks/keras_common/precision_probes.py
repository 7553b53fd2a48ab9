"""Attempts with Keras' dtype policies."""

from functools import partial

import keras
import numpy as np

from frameworks.contract import Attempt, Capability
from frameworks.keras_common.settings import dtype_policy


def formats_of(policy: str, inside: str | None = None) -> tuple[str, str]:
    """Formats of a dense layer's output and kernel under a policy; `inside` is the layer's own."""
    with dtype_policy(policy):
        layer = keras.layers.Dense(2, **({"dtype": inside} if inside else {}))
    output = layer(np.ones((1, 2), np.float32))
    return keras.backend.standardize_dtype(output.dtype), str(layer.kernel.dtype)


def mixed(format_name: str) -> bool:
    """Whether a mixed policy gives float32 kernels and outputs in the format."""
    return formats_of(f"mixed_{format_name}") == (format_name, "float32")


def low(format_name: str) -> bool:
    """Whether a policy gives kernels and outputs in the format."""
    return formats_of(format_name) == (format_name, format_name)


def mastered(format_name: str) -> bool:
    """Low-precision weights under any policy that names the format, with an optimizer that keeps float32 masters."""
    for policy in (format_name, f"mixed_{format_name}"):
        with dtype_policy(policy):
            layer = keras.layers.Dense(2)
        layer.build((1, 2))
        if layer.kernel.dtype != format_name:
            continue
        optimizer = keras.optimizers.Adam(2.0**-13)
        optimizer.build([layer.kernel])
        if any(v.shape == layer.kernel.shape and v.dtype == "float32" for v in optimizer.variables):
            return True
    return False


OF_POLICIES: dict[Capability, Attempt] = {
    Capability.O1_FLOAT16: partial(mixed, "float16"),
    Capability.O1_BFLOAT16: partial(mixed, "bfloat16"),
    Capability.O2_FLOAT16: partial(mastered, "float16"),
    Capability.O2_BFLOAT16: partial(mastered, "bfloat16"),
    Capability.O3_FLOAT16: partial(low, "float16"),
    Capability.O3_BFLOAT16: partial(low, "bfloat16"),
}
"""An attempt for each capability of dtype policies."""
