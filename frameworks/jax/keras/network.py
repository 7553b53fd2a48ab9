"""Counts of the fixture model's segments on JAX, where only a callback sees a compiled pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from frameworks.jax.core.network import count_call
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

    def begins(inputs: jax.Array) -> None:
        begun = _BEGUN.get()
        if begun is not None and number is not None:
            count_call(begun, number, inputs)

    return begins
