"""Minimum work of a step: operations of its products, and bytes that do not fit into a cache."""

from __future__ import annotations

from math import prod

from fixtures.layers import (
    Activation,
    Convolution,
    Dense,
    Embedding,
    Flatten,
    Heads,
    Layer,
    Positions,
    Residual,
    SelfAttention,
    Shape,
    output_shape,
    own_parameters,
)
from fixtures.model import Batch, Model
from fixtures.recipe import SGD, Optimizer, Precision

WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
IN_PLACE = {"relu", "tanh", "sigmoid"}
"""Activations whose backward pass reads their outputs alone."""


def operations(model: Model, samples: int) -> int:
    """Multiplications and additions in the products of one step: forward, and backward for weights and inputs.

    A product of (n, i) and (i, o) has 2·n·i·o. Backward has it once for the weight and once for the input, which asks
    for no gradient before the first layer with weights. Everything that is no product is left out.
    """
    total, reached = 0, False
    for _, layer, shape in model.shapes():
        weighted, inner = products(layer, shape)
        total += samples * ((3 if reached else 2) * weighted + 3 * inner)
        reached = reached or bool(own_parameters(layer, shape))
    return total


def products(layer: Layer, shape: Shape) -> tuple[int, int]:
    """Forward operations of a layer for one sample: those on its own input, and those on what it computed from it."""
    rows, width = prod(shape[:-1]), shape[-1] if shape else 0
    match layer:
        case Dense(units=units):
            return 2 * rows * width * units, 0
        case Convolution(size=size):
            return 2 * prod(output_shape(layer, shape)) * size**2 * width, 0
        case SelfAttention():
            return 3 * 2 * rows * width**2, 2 * rows * width**2 + 2 * 2 * rows**2 * width
        case Heads(heads=heads):
            return sum(2 * rows * width * head.units for head in heads), 0
        case _:
            return 0, 0


def least_bytes(model: Model, batch: Batch, precision: Precision, optimizer: Optimizer) -> int:
    """Bytes that a step moves at least, if each layer is one program and a cache carries nothing from one to the next.

    A product's weight is read forward and backward in the product's format, for which mixed precision reads it once
    more and writes a copy; of an embedding the rows that are picked are read, and other parameters once. A gradient is
    written and read; the update reads and writes the parameter and each moment. What backward needs of a layer is
    written once and read once. Inputs are read.
    """
    total = batch.inputs.nbytes
    for path, layer, shape in model.shapes():
        for name, dimensions in own_parameters(layer, shape).items():
            width = WIDTHS[model.parameter_format(f"{path}.{name}")]
            read = _read(layer, name, width, WIDTHS[precision.format])
            total += prod(dimensions) * (read + 4 * width + 2 * width * moments(optimizer))
        activation_bytes = activations(layer, shape) * 2 * WIDTHS[precision.format]
        picked = prod(output_shape(layer, shape)) * WIDTHS["float32"] if isinstance(layer, Embedding) else 0
        total += len(batch) * (activation_bytes + picked)
    return total


def _read(layer: Layer, name: str, width: int, low: int) -> int:
    """Bytes an element of a parameter takes forward and backward."""
    if isinstance(layer, Embedding):
        return 0
    if not isinstance(layer, Dense | Convolution | SelfAttention | Heads) or name.endswith("bias"):
        return width
    used = width if width == WIDTHS["float64"] else low
    return 2 * used + (width + used if used < width else 0)


def moments(optimizer: Optimizer) -> int:
    """How many values the optimizer keeps for each weight."""
    if isinstance(optimizer, SGD):
        return 1 if optimizer.momentum else 0
    return 2


def activations(layer: Layer, shape: Shape) -> int:
    """Elements that backward needs of a layer for one sample: its output, unless another layer's can take its place.

    A sum (a residual's, a table's of positions) takes the place of what was added. Attention keeps query, key and value
    and their mix, but no scores.
    """
    match layer:
        case Activation(kind=kind) if kind in IN_PLACE:
            return 0
        case Flatten() | Positions() | Residual() | Heads():
            return 0
        case SelfAttention():
            return 5 * prod(shape)
        case _:
            return prod(output_shape(layer, shape))
