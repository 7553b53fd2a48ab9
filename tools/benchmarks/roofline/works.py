"""The products and sums of each framework with which a device's rates are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

Work = Callable[[], object]


class Works(Protocol):
    """The products and sums of one framework."""

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Work:
        """The product of two matrices (size, size), of which the left or the right one may be transposed."""

    def addition(self, elements: int, device: str) -> Work:
        """The sum of two float32 vectors: 12 bytes an element."""


class TorchWorks:
    """Works in PyTorch, with memory for the results."""

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Work:
        import torch

        a, b, out = (torch.ones(size, size, dtype=getattr(torch, format_name), device=device) for _ in range(3))
        return partial(torch.matmul, a.T if left else a, b.T if right else b, out=out)

    def addition(self, elements: int, device: str) -> Work:
        import torch

        a, b, out = (torch.ones(elements, device=device) for _ in range(3))
        return partial(torch.add, a, b, out=out)


class TensorFlowWorks:
    """Works in TensorFlow, each a `tf.function`."""

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Work:
        import tensorflow as tf

        return self._compiled(
            partial(tf.matmul, transpose_a=left, transpose_b=right), (size, size), format_name, device
        )

    def addition(self, elements: int, device: str) -> Work:
        import tensorflow as tf

        return self._compiled(tf.add, (elements,), "float32", device)

    def _compiled(self, operation: Callable[..., Any], shape: tuple[int, ...], format_name: str, device: str) -> Work:
        import tensorflow as tf

        from frameworks.tf.core.devices import place

        with tf.device(place(device)):
            operands = [tf.ones(shape, format_name) for _ in range(2)]
        return partial(tf.function(lambda a, b: operation(a, b), autograph=False), *operands)


class PaddleWorks:
    """Works in Paddle's dynamic graph, on its current device."""

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Work:
        import paddle

        a, b = (paddle.ones([size, size], format_name) for _ in range(2))
        return partial(paddle.matmul, a, b, transpose_x=left, transpose_y=right)

    def addition(self, elements: int, device: str) -> Work:
        import paddle

        return partial(paddle.add, *(paddle.ones([elements], "float32") for _ in range(2)))


class JaxWorks:
    """Works in JAX, compiled."""

    def product(self, size: int, format_name: str, device: str, *, left: bool, right: bool) -> Work:
        return self._compiled(
            lambda a, b: (a.T if left else a) @ (b.T if right else b), (size, size), format_name, device
        )

    def addition(self, elements: int, device: str) -> Work:
        return self._compiled(lambda a, b: a + b, (elements,), "float32", device)

    def _compiled(self, operation: Callable[..., Any], shape: tuple[int, ...], format_name: str, device: str) -> Work:
        import jax

        from frameworks.jax.core.on_device import platforms

        place = jax.devices(platforms()[device])[0]
        operands = [jax.device_put(jax.numpy.ones(shape, format_name), place) for _ in range(2)]
        return partial(jax.jit(operation), *operands)


WORKS: Mapping[str, Works] = {
    "torch": TorchWorks(),
    "tf": TensorFlowWorks(),
    "paddle": PaddleWorks(),
    "jax": JaxWorks(),
}
"""The works of each framework that has them."""
