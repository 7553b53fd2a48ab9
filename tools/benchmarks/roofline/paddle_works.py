"""A product and a sum in Paddle's dynamic graph."""

from __future__ import annotations

from collections.abc import Callable

import paddle


def product(size: int, format_name: str, device: str, *, left: bool, right: bool) -> Callable[[], object]:
    """The product of two matrices (size, size), of which the left or the right one may be transposed."""
    del device
    a, b = (paddle.ones([size, size], format_name) for _ in range(2))
    return lambda: paddle.matmul(a, b, transpose_x=left, transpose_y=right)


def addition(elements: int, device: str) -> Callable[[], object]:
    """The sum of two float32 vectors."""
    del device
    left, right = (paddle.ones([elements], "float32") for _ in range(2))
    return lambda: paddle.add(left, right)
