"""TensorFlow's calls for `conformance doctor`; imports TensorFlow alone."""

from __future__ import annotations

import os
from time import perf_counter

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import tensorflow as tf

from fixtures.arrays import Array

for gpu in tf.config.list_physical_devices("GPU"):  # two processes share it
    tf.config.experimental.set_memory_growth(gpu, True)

_PLACES = {"cpu": "/CPU:0", "cuda": "/GPU:0"}


def version() -> str:
    """TensorFlow's version."""
    return str(tf.__version__)


def gpus() -> int:
    """Number of NVIDIA GPUs."""
    return len(tf.config.list_physical_devices("GPU")) if tf.test.is_built_with_cuda() else 0


def product(device: str, left: Array, right: Array) -> Array:
    """Matrix product on a device."""
    with tf.device(_PLACES[device]):
        return np.asarray(tf.matmul(tf.constant(left), tf.constant(right)).numpy())


def timed(device: str, left: Array, right: Array) -> float:
    """Seconds of a product between two waits for every device, by the host's clock."""
    with tf.device(_PLACES[device]):
        a, b = tf.constant(left), tf.constant(right)
        tf.test.experimental.sync_devices()
        begin = perf_counter()
        tf.matmul(a, b)
        tf.test.experimental.sync_devices()
    return perf_counter() - begin
