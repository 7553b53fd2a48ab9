"""JAX's operations with examples, and what techniques make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import jax
import jax.image
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np

from frameworks.base.shipped import FACTOR, BaseShipped, incoming, inputs, listed
from frameworks.contract import Values

Function = Callable[..., list[jax.Array]]
_FILE = Path(__file__).with_name("shipped.toml")


def _same(function: Function) -> Function:
    return function


_DIFFERENTIATED: Mapping[str, Callable[[Function], Function]] = {
    "recomputed": jax.checkpoint,
}
"""Functions that are differentiated in place of the part."""


class Operations(BaseShipped):
    """Functions of jax.numpy, jax.nn, jax.lax and jax.scipy, as far as this version has them."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = listed(_FILE, "operations")

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.listed.inputs if _part(name) is not None)

    def techniques(self) -> tuple[str, ...]:
        return (*_DIFFERENTIATED, "without-gradient", "one-input", "used-twice", "scaled", "compiled")

    def computed(self, name: str, technique: str) -> Values:
        function, leaves = _of_leaves(_part(name), inputs(self.listed.inputs[name]))
        if technique == "without-gradient":
            return _named("value", function(*leaves))
        if technique == "one-input":
            return _named("gradient", [_of_one(function, leaves, place) for place in range(len(leaves))])
        chosen = _DIFFERENTIATED.get(technique, _same)(function)
        if technique == "compiled":
            outputs, gradients = jax.jit(partial(_pulled, chosen, technique))(leaves)
        else:
            outputs, gradients = _pulled(chosen, technique, leaves)
        return _named("value", outputs) | _named("gradient", gradients)


def _part(name: str) -> Any:
    try:
        return attrgetter(name)(jax)
    except AttributeError:
        return None


def _of_leaves(part: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Function, list[jax.Array]]:
    """The part as a function of its floating arrays, to the list of its floating outputs; and the arrays."""
    found, nest = jax.tree_util.tree_flatten(list(arguments), is_leaf=lambda each: isinstance(each, tuple))
    places = [i for i, each in enumerate(found) if isinstance(each, np.ndarray) and each.dtype == np.float32]
    leaves = [jnp.asarray(found[place]) for place in places]

    def function(*values: jax.Array) -> list[jax.Array]:
        filled = [jnp.asarray(each) if isinstance(each, np.ndarray) else each for each in found]
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        result = jax.tree_util.tree_leaves(part(*jax.tree_util.tree_unflatten(nest, filled)))
        return [each for each in result if jnp.issubdtype(each.dtype, jnp.inexact)]

    return function, leaves


def _pulled(function: Function, technique: str, leaves: Sequence[jax.Array]) -> tuple[Any, Any]:
    outputs, pullback = jax.vjp(function, *leaves)
    factor = FACTOR if technique == "scaled" else 1.0
    given = [jnp.asarray(incoming(each.shape) * np.float32(factor), each.dtype) for each in outputs]
    if technique == "used-twice":
        pullback(given)
    return outputs, [each / factor for each in pullback(given)]


def _of_one(function: Function, leaves: Sequence[jax.Array], place: int) -> jax.Array:
    """The gradient of one input, which alone is differentiated."""
    return _pulled(lambda value: function(*leaves[:place], value, *leaves[place + 1 :]), "", [leaves[place]])[1][0]


def _named(kind: str, arrays: Sequence[jax.Array]) -> dict[str, Any]:
    return {f"{kind}/{place}": np.asarray(each) for place, each in enumerate(arrays)}
