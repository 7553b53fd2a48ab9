"""Autograd primitives of the reference, each with its derivatives: products, convolution, pooling and functions.

Arrays are float64 carriers. A primitive that takes a rounding and a format rounds its result and its gradients to the
format. The function that makes a pullback takes the result and all arguments of its primitive. `erf` and `logistic` are
defined here, because `autograd.scipy`, which also has them, imports SciPy's statistics and integration, which takes
most of a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special

from fixtures.arrays import Array
from frameworks.reference.core.rounding import Rounding, Stochastic

Pullback = Callable[[Array], Array]

CHUNKS = 8
"""Largest number of partial sums of a float32 contraction."""

erf = primitive(special.erf)
defvjp(erf, lambda _, x: lambda g: 2.0 * g * (1.0 / math.sqrt(math.pi)) * anp.exp(-(x**2)))

logistic = primitive(special.expit)
defvjp(logistic, lambda y, _: lambda g: g * y * (1.0 - y))


@primitive
def user_square(x: Array) -> Array:
    """x·x with the backward pass of `fixtures.model.UserFunction`."""
    return x * x


defvjp(user_square, lambda _, x: lambda g: g * np.clip(2.0 * x, -1.0, 1.0))


@primitive
def weighted_sum(x: Array, weights: Array) -> Array:
    """The sum of x · weights, whose gradient with respect to x is the weights."""
    return np.asarray(np.sum(x * weights))


defvjp(weighted_sum, lambda _ans, _x, weights: lambda g: g * weights, None)


def contract(a: Array, b: Array, rounding: Rounding, format_name: str) -> Array:
    """Matrix product a (..., M, K) · b (..., K, N) rounded to the format.

    Under `Stochastic`, a float32 result is the sum of at most `CHUNKS` partial sums along K. It is rounded after each
    of them, as a sum of as many terms as the partial sum has. In low formats the whole product is rounded once, since
    their kernels accumulate in float32 or wider.
    """
    length = a.shape[-1]
    if format_name != "float32" or length <= 1 or not isinstance(rounding, Stochastic):
        return rounding.round(a @ b, format_name)
    step = -(-length // CHUNKS)
    total = rounding.round(a[..., :step] @ b[..., :step, :], format_name, step)
    for start in range(step, length, step):
        part = a[..., start : start + step] @ b[..., start : start + step, :]
        total = rounding.round(total + part, format_name, step)
    return total


@primitive
def product(a: Array, b: Array, rounding: Rounding, format_name: str) -> Array:
    """`contract` with derivatives; b has the batch axes of a, or is one matrix for all batches."""
    return contract(a, b, rounding, format_name)


defvjp(
    product,
    lambda _ans, _a, b, rounding, name: lambda g: contract(g, _transpose(b), rounding, name),
    lambda _ans, a, b, rounding, name: lambda g: _right_gradient(a, b, g, rounding, name),
    None,
    None,
)


def _right_gradient(a: Array, b: Array, gradient: Array, rounding: Rounding, name: str) -> Array:
    """The gradient of the right factor b of a product."""
    if b.ndim == 2 and a.ndim > 2:
        return contract(a.reshape(-1, a.shape[-1]).T, gradient.reshape(-1, gradient.shape[-1]), rounding, name)
    return _fold(contract(_transpose(a), gradient, rounding, name), b.shape)


def _fold(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sums a gradient over the batch axes that broadcasting added."""
    extra = gradient.ndim - len(shape)
    return gradient.sum(axis=tuple(range(extra))) if extra else gradient


def _transpose(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


@primitive
def affine(x: Array, weight: Array, bias: Array, rounding: Rounding, format_name: str) -> Array:
    """x (..., I) · weight (I, O) + bias (O). float32 rounds the product and the sum, low formats only the sum."""
    wide = "float32" if format_name == "float32" else "float64"
    return rounding.round(contract(x, weight, rounding, wide) + bias, format_name)


defvjp(
    affine,
    lambda _ans, _x, weight, _bias, rounding, name: lambda g: contract(g, weight.T, rounding, name),
    lambda _ans, x, weight, _bias, rounding, name: lambda g: _right_gradient(x, weight, g, rounding, name),
    lambda _ans, _x, _w, _bias, rounding, name: lambda g: _column_sums(g, rounding, name),
    None,
    None,
)


def _column_sums(gradient: Array, rounding: Rounding, name: str) -> Array:
    rows = gradient.reshape(-1, gradient.shape[-1])
    return rounding.round(rows.sum(axis=0), name, len(rows))


@primitive
def convolution(
    x: Array, weight: Array, bias: Array, stride: int, padding: int, rounding: Rounding, format_name: str
) -> Array:
    """Cross-correlation of x (N, H, W, C) with weight (size, size, C, F), plus bias (F)."""
    rows = _windows(x, weight.shape[0], stride, padding)
    return affine.fun(rows, weight.reshape(-1, weight.shape[-1]), bias, rounding, format_name)


def _convolution_x(
    ans: Array, x: Array, weight: Array, bias: Array, stride: int, padding: int, rounding: Rounding, name: str
) -> Pullback:
    del ans, bias
    flat = weight.reshape(-1, weight.shape[-1])
    wide = "float32" if name == "float32" else "float64"
    unwindow = partial(_unwindow, shape=x.shape, size=weight.shape[0], stride=stride, padding=padding)
    return lambda g: rounding.round(unwindow(contract(g, flat.T, rounding, wide)), name)


def _convolution_weight(
    ans: Array, x: Array, weight: Array, bias: Array, stride: int, padding: int, rounding: Rounding, name: str
) -> Pullback:
    del ans, bias

    def pullback(gradient: Array) -> Array:
        rows = _windows(x, weight.shape[0], stride, padding)
        flat = weight.reshape(-1, weight.shape[-1])
        return _right_gradient(rows, flat, gradient, rounding, name).reshape(weight.shape)

    return pullback


def _convolution_bias(
    ans: Array, x: Array, weight: Array, bias: Array, stride: int, padding: int, rounding: Rounding, name: str
) -> Pullback:
    del ans, x, weight, bias, stride, padding
    return lambda g: _column_sums(g, rounding, name)


defvjp(convolution, _convolution_x, _convolution_weight, _convolution_bias, None, None, None, None)


def _windows(x: Array, size: int, stride: int, padding: int) -> Array:
    """Every window of (N, H, W, C) as a row: (N, H', W', size·size·C)."""
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    sliding: Callable[..., Array] = sliding_window_view
    views = sliding(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    return views.transpose(0, 1, 2, 4, 5, 3).reshape(*views.shape[:3], math.prod(views.shape[3:]))


def _unwindow(rows: Array, shape: tuple[int, ...], size: int, stride: int, padding: int) -> Array:
    """Adds every window's row back to its place: the adjoint of `_windows`."""
    count, height, width, channels = shape
    total = np.zeros((count, height + 2 * padding, width + 2 * padding, channels))
    down, across = rows.shape[1:3]
    split = rows.reshape(count, down, across, size, size, channels)
    for i in range(size):
        for j in range(size):
            total[:, i : i + stride * down : stride, j : j + stride * across : stride] += split[:, :, :, i, j]
    return total[:, padding : padding + height, padding : padding + width]


@primitive
def largest(x: Array, size: int) -> Array:
    """Maximum over non-overlapping size × size squares of (N, H, W, C); the first of equal maxima gets the gradient."""
    return _tiles(x, size).max(axis=-1)


def _largest_x(ans: Array, x: Array, size: int) -> Pullback:
    del ans
    first = np.argmax(_tiles(x, size), axis=-1)

    def pullback(gradient: Array) -> Array:
        spread = np.zeros((*gradient.shape, size * size))
        np.put_along_axis(spread, first[..., None], gradient[..., None], axis=-1)
        tiles = spread.reshape(*gradient.shape, size, size)
        return tiles.transpose(0, 1, 4, 2, 5, 3).reshape(x.shape)

    return pullback


defvjp(largest, _largest_x, None)


def _tiles(x: Array, size: int) -> Array:
    """The values of every square, on a last axis: (N, H / size, W / size, C, size · size)."""
    count, height, width, channels = x.shape
    cut = x.reshape(count, height // size, size, width // size, size, channels)
    return cut.transpose(0, 1, 3, 5, 2, 4).reshape(count, height // size, width // size, channels, size * size)
