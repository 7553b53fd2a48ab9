"""Tensors, the tape of a function, and recomputed calls, which run again in the backward pass.

The tape is autograd's. This module adds several outputs on one tape, a separate input for each array of a container,
recomputation, and a trace stack that is restored when the function raises.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from autograd.core import VJPNode, add_outgrads
from autograd.extend import defvjp, defvjp_argnums, primitive
from autograd.tracer import getval, isbox, new_box, trace_stack
from autograd.util import toposort

from fixtures.arrays import FORMATS, Array
from frameworks.reference.core.rounding import Rounding
from frameworks.reference.core.scope import current, open_scope

Pullback = Callable[[Array], Any]
Replay = Callable[[], AbstractContextManager[Any]]


def depth() -> int:
    """Number of open traces."""
    return int(trace_stack.top)


def close_down_to(traces: int) -> None:
    """Closes the newest traces until only `traces` are open."""
    trace_stack.top = traces


def record_pullbacks(
    function: Callable[[Any], Sequence[Any]], x: Any, node: type[VJPNode] = VJPNode
) -> tuple[list[Any], list[Pullback]]:
    """The outputs of `function(x)`, and for each output its pullback to the gradient of x.

    Args:
        x: an array, list, tuple or dict.
        node: the type of the tape's nodes; a node keeps the values that its derivative needs.
    """
    before = trace_stack.top
    leaves: list[Any] = []
    nest = flatten(x, leaves)
    roots = [node.new_root() for _ in leaves]
    try:
        with trace_stack.new_trace() as trace:
            boxes = [new_box(leaf, trace, root) for leaf, root in zip(leaves, roots, strict=True)]
            outputs = list(function(fill(nest, boxes)))
    finally:
        trace_stack.top = before

    def pullback(end: Any) -> Pullback:
        def pull(gradient: Array) -> Any:
            by_root = _gradients(gradient, end)
            inputs = zip(roots, leaves, strict=True)
            return fill(nest, [by_root[root] if root in by_root else np.zeros_like(leaf) for root, leaf in inputs])

        return pull

    values, pullbacks = [], []
    for output in outputs:
        mine = isbox(output) and output._trace == trace
        values.append(output._value if mine else output)
        pullbacks.append(pullback(output._node) if mine else _nothing)
    return values, pullbacks


def _gradients(gradient: Array, end: Any) -> dict[Any, Any]:
    """The gradient with respect to every input that a node depends on, by the input's node."""
    arrived = {end: (gradient, False)}
    inputs = {}
    for node in toposort(end):
        here, _ = arrived.pop(node)
        if not node.parents:
            inputs[node] = here
        for parent, part in zip(node.parents, node.vjp(here), strict=True):
            arrived[parent] = add_outgrads(arrived.get(parent), part)
    return inputs


def _nothing(_: Array) -> None:
    return None


class _Leaf:
    """Placeholder of a floating array in nested containers: its index in the list of arrays."""

    def __init__(self, index: int) -> None:
        self.index = index


class _NoLeaves:
    """A container without floating arrays, which is passed on as it is."""

    def __init__(self, container: Any) -> None:
        self.container = container


def flatten(nest: Any, leaves: list[Any]) -> Any:
    """`nest` with every floating array or box replaced by a placeholder; the arrays are appended to `leaves`.

    A container without floating arrays is not copied, so that its owner sees what a function writes into it.
    """
    before = len(leaves)
    if isinstance(nest, dict):
        filled: Any = {key: flatten(value, leaves) for key, value in nest.items()}
        return filled if len(leaves) > before else _NoLeaves(nest)
    if isinstance(nest, list | tuple):
        filled = type(nest)(flatten(value, leaves) for value in nest)
        return filled if len(leaves) > before else _NoLeaves(nest)
    if isbox(nest) or (isinstance(nest, np.ndarray) and nest.dtype.kind == "f"):
        leaves.append(nest)
        return _Leaf(len(leaves) - 1)
    return nest


def fill(nest: Any, leaves: Sequence[Any]) -> Any:
    """Inverse of `flatten`: the nest with `leaves` in place of its placeholders."""
    if isinstance(nest, dict):
        return {key: fill(value, leaves) for key, value in nest.items()}
    if isinstance(nest, list | tuple):
        return type(nest)(fill(value, leaves) for value in nest)
    if isinstance(nest, _NoLeaves):
        return nest.container
    return leaves[nest.index] if isinstance(nest, _Leaf) else nest


def _rebound(function: types.FunctionType, cells: Sequence[Any]) -> types.FunctionType:
    """`function` with other values in its closure."""
    closure = tuple(types.CellType(value) for value in cells)
    code, names = function.__code__, function.__globals__
    result = types.FunctionType(code, names, function.__name__, function.__defaults__, closure)
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def recompute_function(function: Callable[..., Any], *args: Any, replay: Replay | None = None, **kwargs: Any) -> Any:
    """The array `function(*args, **kwargs)`. Only the arguments are saved for backward, which runs the function again.

    Arrays get gradients in every position: positional, by keyword, in tuples, lists and dicts, or closed over. `replay`
    makes the context of the second run; without it the precision scope of the first run is opened again.

    Raises:
        RuntimeError: in backward, if an argument was changed in place since the forward pass; in forward, if the
            function reaches a traced value in a way that cannot be followed.
    """
    scope = current()
    context = replay or (lambda: open_scope(scope))
    closure = function.__closure__ if isinstance(function, types.FunctionType) else None
    cells = [cell.cell_contents for cell in closure or ()]
    leaves: list[Any] = []
    nest = flatten((args, kwargs, cells), leaves)

    def run(*values: Any) -> Any:
        arguments, named, closed = fill(nest, values)
        called = _rebound(function, closed) if isinstance(function, types.FunctionType) and cells else function
        return called(*arguments, **named)

    return _recompute(run, context, *leaves)


def _fingerprint(values: Sequence[Any]) -> list[int]:
    return [zlib.crc32(np.ascontiguousarray(v).data) for v in values if isinstance(v, np.ndarray)]


@primitive
def _recompute(run: Callable[..., Any], context: Replay, *values: Any) -> Any:
    del context
    result = run(*values)
    if isbox(result) and not any(isbox(v) for v in values):
        raise RuntimeError("a recomputed function uses a traced value that is neither an argument nor in its closure")
    return result


def _backward(argnums: tuple[int, ...], ans: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del ans, kwargs
    run, context, *values = args
    fingerprint = _fingerprint(values)
    wanted = [i - 2 for i in argnums]

    def again(chosen: Any) -> list[Any]:
        filled = list(values)
        for position, index in enumerate(wanted):
            filled[index] = chosen[position]
        return [run(*filled)]

    def pullback(gradient: Array) -> Any:
        if _fingerprint(values) != fingerprint:
            raise RuntimeError("an argument of a recomputed function was changed between forward and backward")
        with context():
            _, (pull,) = record_pullbacks(again, tuple(values[i] for i in wanted))
        gradients = pull(gradient)
        return gradients if gradients is not None else tuple(np.zeros_like(values[i]) for i in wanted)

    return pullback


defvjp_argnums(_recompute, _backward)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A float64 carrier (or an autograd box around one) whose values belong to `format`; integers carry themselves.

    `owned` is False for parameters, inputs, and their copies in other formats: their bytes are not counted as saved for
    backward.
    """

    value: Any
    format: str
    owned: bool = True

    @property
    def floating(self) -> bool:
        """True if its format is a floating-point format."""
        return self.format in FORMATS

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(self.value.shape)

    @property
    def bytes(self) -> int:
        """Size of the value in its format, in bytes."""
        size = FORMATS[self.format].dtype.itemsize if self.floating else np.dtype(self.format).itemsize
        return int(np.prod(self.shape)) * size

    def plain(self) -> Array:
        """The value without any box."""
        return plain(self.value)


def plain(value: Any) -> Array:
    """`value` without the boxes of any trace."""
    while isbox(value):
        value = getval(value)
    return np.asarray(value)


def tensor(array: Array, owned: bool = True) -> Tensor:
    """The array as a tensor of its own format; a floating-point array is stored as a float64 carrier."""
    name = array.dtype.name
    return Tensor(array.astype(np.float64) if name in FORMATS else array, name, owned)


@primitive
def round_values(x: Array, rounding: Rounding, format_name: str, terms: int = 1) -> Array:
    """x, a sum of `terms` values, rounded to the format; its gradient is rounded to the format too."""
    return rounding.round(x, format_name, terms)


defvjp(
    round_values, lambda _ans, _x, rounding, name, terms=1: lambda g: rounding.round(g, name, terms), None, None, None
)


@primitive
def _cast_array(x: Array, rounding: Rounding, source: str, target: str) -> Array:
    del source
    return rounding.round(x, target)


defvjp(
    _cast_array,
    lambda _ans, _x, rounding, source, target: lambda g: rounding.round(rounding.round(g, target), source),
    None,
    None,
    None,
)


def cast_tensor(x: Tensor, target: str, rounding: Rounding) -> Tensor:
    """x in another format. The gradient of a cast is a cast: it is rounded to `target`, then to x's format."""
    if x.format == target:
        return x
    return Tensor(_cast_array(x.value, rounding, x.format, target), target, x.owned)
