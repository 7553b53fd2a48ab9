"""Outputs of every layer in a program, by Paddle's hooks for layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from frameworks.paddle.core.trace import hooked


@contextmanager
def recorded(layers: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The outputs of these layers, by path, as the static graph that is built inside has them."""
    outputs: dict[str, Any] = {}

    def hook(path: str) -> Callable[[Any, Any, Any], None]:
        def take(_layer: Any, _inputs: Any, output: Any) -> None:
            outputs[path] = output

        return take

    with hooked(layers, hook):
        yield outputs
