"""JAX's calls for `conformance doctor`; imports JAX alone."""

from __future__ import annotations

import os
from time import perf_counter

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import numpy as np

from fixtures.arrays import Array


def version() -> str:
    """JAX's version."""
    return str(jax.__version__)


def gpus() -> int:
    """Number of NVIDIA GPUs.

    Raises:
        RuntimeError: JAX cannot initialize its plugin; the message says why.
    """
    return len(jax.devices("cuda"))


def product(device: str, left: Array, right: Array) -> Array:
    """Matrix product on a device."""
    place = jax.devices(device)[0]
    result = jax.device_put(left, place) @ jax.device_put(right, place)
    return np.asarray(result)


def timed(device: str, left: Array, right: Array) -> float:
    """Seconds of a product until it is ready, by the host's clock."""
    place = jax.devices(device)[0]
    a, b = jax.block_until_ready((jax.device_put(left, place), jax.device_put(right, place)))
    begin = perf_counter()
    jax.block_until_ready(a @ b)
    return perf_counter() - begin
