"""Paddle's calls for `conformance doctor`; imports Paddle alone."""

from __future__ import annotations

import os
from time import perf_counter

os.environ.setdefault("GLOG_minloglevel", "2")

import numpy as np
import paddle

from fixtures.arrays import Array

_PLACES = {"cpu": "cpu", "cuda": "gpu:0"}


def version() -> str:
    """Paddle's version."""
    return str(paddle.__version__)


def gpus() -> int:
    """Number of NVIDIA GPUs."""
    return int(paddle.device.cuda.device_count()) if paddle.device.is_compiled_with_cuda() else 0


def product(device: str, left: Array, right: Array) -> Array:
    """Matrix product on a device."""
    paddle.set_device(_PLACES[device])
    return np.asarray(paddle.matmul(paddle.to_tensor(left), paddle.to_tensor(right)).numpy())


def timed(device: str, left: Array, right: Array) -> float:
    """Seconds of a product between two waits for the device, by the host's clock."""
    paddle.set_device(_PLACES[device])
    a, b = paddle.to_tensor(left), paddle.to_tensor(right)
    paddle.device.synchronize()
    begin = perf_counter()
    paddle.matmul(a, b)
    paddle.device.synchronize()
    return perf_counter() - begin
