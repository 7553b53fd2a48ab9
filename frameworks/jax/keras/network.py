"""Counts of the fixture model's segments on JAX, where only a callback sees a compiled pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax

from frameworks.keras_common.network import Begins

_BEGUN: ContextVar[Callable[[int], object] | None] = ContextVar("begun", default=None)


@contextmanager
def counting(begun: Callable[[int], object]) -> Iterator[None]:
    """Within the context, traced passes call `begun` with a segment's number whenever its forward begins."""
    token = _BEGUN.set(begun)
    try:
        yield
    finally:
        _BEGUN.reset(token)


def counter(number: int | None) -> Begins:
    """Counts the forwards of a segment in passes that are traced within `counting`."""
    return partial(_begins, number)


def _begins(number: int | None, inputs: jax.Array) -> None:
    begun = _BEGUN.get()
    if begun is not None and number is not None:
        jax.debug.callback(partial(_count_call, begun, number), inputs.ravel()[0])


def _count_call(begun: Callable[[int], object], number: int, _: Any) -> None:
    begun(number)
