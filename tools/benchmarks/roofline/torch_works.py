"""A product and a sum in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch


def product(size: int, format_name: str, device: str, *, left: bool, right: bool) -> Callable[[], object]:
    """The product of two matrices (size, size), of which the left or the right one may be transposed."""
    a, b, out = (torch.ones(size, size, dtype=getattr(torch, format_name), device=device) for _ in range(3))
    x, y = a.T if left else a, b.T if right else b
    return lambda: torch.matmul(x, y, out=out)


def addition(elements: int, device: str) -> Callable[[], object]:
    """The sum of two float32 vectors."""
    left, right, out = (torch.ones(elements, device=device) for _ in range(3))
    return lambda: torch.add(left, right, out=out)
