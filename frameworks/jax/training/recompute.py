"""Recomputation by `jax.checkpoint`: the runs of segments, and the cases of Σ tanh(x·w).

Runs of segments are counted in a pass of its own, so that no other pass carries a callback.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import SCALE, FunctionUse
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, RecomputeCase, RecomputeResult
from frameworks.jax.core.arrays import Flat, to_array
from frameworks.jax.core.layers import VARIANTS, DeviceBatch, segments
from frameworks.jax.core.operations import pair
from frameworks.jax.training.optimizers import LossScale
from frameworks.jax.training.steps import CarriedState, CompiledSteps, Plan


def runs_in_a_pass(
    plan: Plan, leaves: Flat, moved: CarriedState, scale: LossScale, batch: DeviceBatch
) -> tuple[int, ...]:
    """How often each segment's forward begins in one forward and backward pass.

    The pass is that of training with one thing more: `jax.debug.callback` at the beginning of each segment.
    """
    begun: list[int] = []
    steps = CompiledSteps(plan, begun.append)
    result: Any = steps.backward(leaves, moved, scale, batch, np.float32(1.0))
    jax.block_until_ready(result)
    jax.effects_barrier()
    return tuple(begun.count(number) for number in range(len(segments(plan.model, plan.recompute))))


def _value(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w).sum()


def _failing(rerun: FailingRerun) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function whose second run raises; a callback counts runs, for Python itself runs only while JAX traces."""

    def begin(zero: Array) -> Array:
        rerun.begin()
        return np.asarray(zero)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        zero = jax.lax.stop_gradient(x[0, 0] * 0)
        return _value(x + jax.pure_callback(begin, jax.ShapeDtypeStruct((), x.dtype), zero), w)

    return function


def recompute(case: RecomputeCase, x: Array, w: Array, variant: str, device: jax.Device) -> RecomputeResult:
    """One case of `Framework.recompute`; JAX's own exceptions leave this call."""

    def run(function: Callable[..., jax.Array], *args: Any, **named: Any) -> Any:
        return jax.checkpoint(function, policy=VARIANTS[variant])(*args, **named)

    return differentiate_case(case, x, w, run, device)


def differentiate_case(
    case: RecomputeCase, x: Array, w: Array, run: Callable[..., Any], device: jax.Device
) -> RecomputeResult:
    """Value and gradients of a case whose recomputation call is `run(function, *args, **named)`.

    JAX's arrays cannot change, so weights that change are new ones.
    """
    inputs, weight = (jax.device_put(np.float32(array), device) for array in (x, w))
    function = partial(recomputed_call, case, run, _value, _failing(FailingRerun()))
    if case == NO_GRAD_INPUT:
        value, pull = jax.vjp(partial(function, inputs), weight)
        return RecomputeResult(float(value), None, to_array(pull(jnp.ones_like(value))[0]))
    value, pull = jax.vjp(function, inputs, weight)
    if case == WEIGHTS_CHANGE:
        weight *= FACTOR
    gradients = [to_array(gradient) for gradient in pull(jnp.ones_like(value))]
    return RecomputeResult(float(value), gradients[0], gradients[1])


def function_used(use: FunctionUse, inputs: tuple[Array, ...], variant: str | None) -> FunctionResult:
    """What backward passes of `fixtures.model` find, and the gradients."""
    asked: list[tuple[bool, ...]] = []

    def loss(*arrays: jax.Array) -> Any:
        results = [dict(zip("yz", pair(*arrays, SCALE, asked), strict=True)) for _ in range(use.times)]
        return sum(outputs[name].sum() for outputs in results for name in use.outputs)

    called = loss if variant is None else jax.checkpoint(loss, policy=VARIANTS[variant])
    places = [index for index, needed in enumerate(use.needs) if needed]
    result = iter(jax.jit(jax.grad(called, places))(*map(jnp.asarray, inputs)))
    return FunctionResult(tuple(asked), tuple(to_array(next(result)) if needed else None for needed in use.needs))
