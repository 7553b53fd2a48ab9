"""A product and a sum in TensorFlow, each a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from frameworks.tf.core.devices import place


def product(size: int, format_name: str, device: str, *, left: bool, right: bool) -> Callable[[], object]:
    """The product of two matrices (size, size), of which the left or the right one may be transposed."""
    return _called(partial(tf.matmul, transpose_a=left, transpose_b=right), (size, size), format_name, device)


def addition(elements: int, device: str) -> Callable[[], object]:
    """The sum of two float32 vectors."""
    return _called(tf.add, (elements,), "float32", device)


def _called(
    operation: Callable[..., tf.Tensor], shape: tuple[int, ...], format_name: str, device: str
) -> Callable[[], object]:
    with tf.device(place(device)):
        left, right = (tf.ones(shape, format_name) for _ in range(2))
    compiled = tf.function(lambda a, b: operation(a, b), autograph=False)
    return lambda: compiled(left, right)
