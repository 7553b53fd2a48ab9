"""Functions with control flow, updated arrays and derivatives, compiled, recomputed and mapped by JAX."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.image
import jax.numpy as jnp
from jax import lax

from frameworks.base.shipped import BaseFunctions, Function, incoming, square
from frameworks.contract import Values
from frameworks.jax.shipped import name_arrays


@jax.custom_vjp
def _sine_with_half(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


_sine_with_half.defvjp(lambda x: (jnp.sin(x), None), lambda _, gradient: (gradient * 0.5,))


def _update_slices(x: jax.Array) -> Any:
    y = x.at[0].set(2.0 * x[1]).at[:, 2].add(x[:, 3]).at[3, 3].multiply(3.0)
    return y.at[1].min(0.5), y.at[jnp.array([0, 0, 2])].add(1.0)


def _scan_backward(x: jax.Array) -> Any:
    return lax.scan(lambda total, row: (total * row, total + row), jnp.ones(4), x, reverse=True, unroll=2)


def _where_branches(x: jax.Array) -> Any:
    y = jnp.where(x > x.mean(1, keepdims=True), jnp.sin(x), jnp.cos(x))
    return y * jnp.linspace(0.25, 1.25, y.size).reshape(y.shape)


def _sort_rows(x: jax.Array) -> Any:
    places = jnp.argsort(x, axis=1)
    return jnp.cumsum(jnp.sort(x, 1), 1), jnp.take_along_axis(x, places[:, :2], 1), lax.top_k(x, 2)[0]


def _call_jitted(x: jax.Array) -> Any:
    inner = jax.jit(lambda y, power: y**power, static_argnums=1)
    return inner(x, 2) + inner(x, 3)


def _compute_in_low_formats(x: jax.Array) -> Any:
    return (x.astype(jnp.bfloat16) * 3).astype(jnp.float32) * (x.astype(jnp.float16) ** 2).astype(jnp.float32)


def _resize_images(x: jax.Array) -> Any:
    image = x.reshape(-1, 2, 2, 1)
    methods = ("nearest", "linear", "cubic", "lanczos3")
    return [jax.image.resize(image, (len(image), 5, 3, 1), method) for method in methods]


def _resize_low_images(x: jax.Array) -> Any:
    low = jnp.tanh(x.astype(jnp.float16)).reshape(-1, 2, 2, 1)
    return jax.image.resize(low, (len(low), 5, 3, 1), "linear").astype(jnp.float32)


_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "updated": _update_slices,
        "scattered": lambda x: jax.ops.segment_sum(x * x, jnp.array([3, 0, 3, 1]), 4),
        "branch": lambda x: lax.cond(x.sum() > 0.0, jnp.exp, jnp.sin, x),
        "switch": lambda x: lax.switch(jnp.argmax(x[0]), [jnp.sin, jnp.cos, jnp.tanh, jnp.exp], x),
        "loop": lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ x), x),
        "scan": lambda x: lax.scan(lambda total, row: (total + row * row, total * row), jnp.zeros(4), x),
        "backward-scan": _scan_backward,
        "mapped": lambda x: (jax.vmap(lambda row: row * row.sum())(x), lax.map(lambda row: row.prod(), x)),
        "associative": lambda x: (lax.associative_scan(jnp.multiply, x), lax.cummax(x, axis=1)),
        "chosen": _where_branches,
        "own-gradient": lambda x: (_sine_with_half(x), jax.grad(lambda y: _sine_with_half(y).sum())(x)),
        "jacobian": lambda x: jax.jacrev(lambda y: (y @ y).prod(0))(x),
        "hessian": lambda x: jax.hessian(lambda y: jnp.tanh((y * jnp.sin(y)).sum()))(x[0]),
        "containers": lambda x: {"a": x * 2.0, "b": [x.sum(), (x - 1.0,)]},
        "stopped": lambda x: x / lax.stop_gradient(x.std()) * lax.stop_gradient(x),
        "determinant": lambda x: tuple(jnp.linalg.slogdet(x + 3.0 * jnp.eye(4))),
        "ordered": _sort_rows,
        "inner-jit": _call_jitted,
        "low": _compute_in_low_formats,
        "resized": _resize_images,
        "low-resized": _resize_low_images,
    }
)


class JAXFunctions(BaseFunctions):
    """Functions differentiated by jax.vjp; without a technique nothing is compiled as a whole."""

    functions = _FUNCTIONS

    def techniques(self) -> tuple[str, ...]:
        return ("compiled", "compiled-inside", "recomputed", "mapped")

    def compute(self, name: str, technique: str) -> Values:
        run = self._apply_technique(_floating_outputs(self.functions[name]), technique)
        outputs, gradient = run(jnp.asarray(square()))
        return name_arrays("value", outputs) | name_arrays("gradient", [gradient])

    def _apply_technique(self, function: Function, technique: str) -> Function:
        """The technique as a function from x to outputs and gradient."""
        match technique:
            case "compiled":
                return jax.jit(_with_gradient(function))
            case "compiled-inside":
                return jax.jit(_with_gradient(jax.jit(function)))
            case "recomputed":
                return jax.jit(_with_gradient(jax.checkpoint(function)))
            case "mapped":
                mapped = jax.jit(jax.vmap(_with_gradient(function)))
                return lambda x: jax.tree.map(lambda leaf: leaf[1], mapped(jnp.stack([x[::-1], x])))
        return _with_gradient(function)


def _floating_outputs(function: Function) -> Function:
    return lambda x: [leaf for leaf in jax.tree.leaves(function(x)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _with_gradient(function: Function) -> Function:
    """A function from x to the outputs of a function and the gradient of x."""

    def both(x: jax.Array) -> Any:
        outputs, pullback = jax.vjp(function, x)
        return outputs, pullback([jnp.asarray(incoming(output.shape), output.dtype) for output in outputs])[0]

    return both
