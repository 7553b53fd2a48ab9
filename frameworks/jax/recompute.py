"""`jax.checkpoint` around Σ tanh(x·w), its arguments passed in every way that users pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fixtures.arrays import Array
from frameworks.contract import RecomputeCase, RecomputeResult
from frameworks.jax.arrays import to_array
from frameworks.jax.network import VARIANTS

Function = Callable[..., jax.Array]


def _value(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w).sum()


def _of_sequence(pair: Sequence[jax.Array]) -> jax.Array:
    return _value(pair[0], pair[1])


def _of_mapping(pair: Mapping[str, jax.Array]) -> jax.Array:
    return _value(pair["x"], pair["w"])


def _failing() -> Function:
    """A function whose second run raises; a callback tells runs, for Python itself runs only while JAX traces."""
    runs: list[int] = []

    def count(zero: Array) -> Array:
        runs.append(len(runs))
        if len(runs) == 2:
            raise RuntimeError("the second run of this function fails")
        return np.asarray(zero)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        zero = jax.lax.stop_gradient(x[0, 0] * 0)
        return _value(x + jax.pure_callback(count, jax.ShapeDtypeStruct((), x.dtype), zero), w)

    return function


def _forward(case: RecomputeCase, run: Callable[[Function], Function], x: jax.Array, w: jax.Array) -> Any:
    match case:
        case "plain":
            return _value(x, w)
        case "positional":
            return run(_value)(x, w)
        case "tuple":
            return run(_of_sequence)((x, w))
        case "list":
            return run(_of_sequence)([x, w])
        case "dict":
            return run(_of_mapping)({"x": x, "w": w})
        case "keyword":
            return run(_value)(x=x, w=w)
        case "no-grad-input" | "weights-changed":
            return run(lambda inner: _value(inner, w))(x)
        case "raises":
            return run(_failing())(x, w)


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, device: jax.Device) -> RecomputeResult:
    """One case of `Framework.recompute`; JAX's own exceptions leave this call.

    Weights that change are closed over; JAX's arrays cannot change, so that tripling makes new ones.
    """
    policy = VARIANTS[variant]
    inputs, weight = (jax.device_put(np.float32(array), device) for array in (x, w))
    function = partial(_forward, case, partial(jax.checkpoint, policy=policy))
    if case == "no-grad-input":
        value, pull = jax.vjp(partial(function, inputs), weight)
        return RecomputeResult(float(value), None, to_array(pull(jnp.ones_like(value))[0]))
    value, pull = jax.vjp(function, inputs, weight)
    if case == "weights-changed":
        weight *= 3.0
    gradients = [to_array(gradient) for gradient in pull(jnp.ones_like(value))]
    return RecomputeResult(float(value), gradients[0], gradients[1])
