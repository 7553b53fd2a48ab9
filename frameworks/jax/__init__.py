"""JAX as its users train with it: Flax Linen, Optax, JMP policies and loss scales, `jax.checkpoint`, Orbax checkpoints.

In mode "keras" Keras trains on JAX instead. The other modes do not need Keras.
"""

import os

from frameworks.jax.core.gpu_variables import variables

os.environ.update(variables())

from importlib import import_module

from frameworks.jax.core.settings import KERAS, OnDevice, is_installed
from frameworks.jax.framework import JaxFramework

__all__ = ["JaxFramework", "adapter"]

NOT_INSTALLED = "jax's mode 'keras' needs Keras, which is not installed: pip install --no-deps keras h5py namex optree"


def adapter(device: str = "auto", mode: str | None = None) -> OnDevice:
    """The framework of a mode: for "keras" that of Keras, which this call imports, else that of Flax and Optax.

    Raises:
        MissingDevice: the device is not there.
        ValueError: there is no such mode, or Keras is not installed, or runs on another backend in this process.
    """
    if mode != KERAS:
        return JaxFramework(device, mode)
    if not is_installed("keras"):
        raise ValueError(NOT_INSTALLED)
    framework: OnDevice = import_module("frameworks.jax.keras.framework").KerasFramework(device, mode)
    return framework
