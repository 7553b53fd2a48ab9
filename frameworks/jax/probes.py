"""The own calls of JAX, Flax, Optax and JMP, run without this adapter's guards: did each take effect?"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
from flax import linen as nn
from flax import serialization

from frameworks.contract import Capability

Probe = Callable[[], bool]


def _weight(value: float = 1.0) -> jax.Array:
    return jnp.full((2,), value)


def _computes_low(dtype: Any) -> bool:
    layer = nn.Dense(4, dtype=dtype)
    x = jnp.ones((2, 4))
    variables = layer.init(jax.random.key(0), x)
    return jnp.asarray(layer.apply(variables, x)).dtype == dtype and variables["params"]["kernel"].dtype == jnp.float32


def _low_model(dtype: Any) -> bool:
    policy = jmp.Policy(jnp.float32, dtype, jnp.float32)
    masters, seen = {"kernel": jnp.ones((4, 4))}, []

    def loss(parameters: dict[str, jax.Array]) -> jax.Array:
        seen.append(policy.cast_to_compute(parameters)["kernel"].dtype)
        return policy.cast_to_output(policy.cast_to_compute(parameters)["kernel"].sum())

    return jax.grad(loss)(masters)["kernel"].dtype == jnp.float32 and seen == [dtype]


def _all_low(dtype: Any) -> bool:
    layer = nn.Dense(4, dtype=dtype, param_dtype=dtype)
    x = jnp.ones((2, 4), dtype)
    parameters = layer.init(jax.random.key(0), x)
    gradients = jax.grad(lambda p: jnp.asarray(layer.apply(p, x)).astype(jnp.float32).sum())(parameters)
    return {leaf.dtype for leaf in jax.tree.leaves((parameters, gradients))} == {jnp.dtype(dtype)}


def _float64_heads() -> bool:
    with jax.enable_x64(True):
        head = nn.Dense(1, dtype=jnp.float64, param_dtype=jnp.float64)
        output, _ = head.init_with_output(jax.random.key(0), jnp.ones((2, 4), jnp.bfloat16))
    return output.dtype == jnp.float64


def _operations() -> bool:
    return jnp.matmul(jnp.ones((2, 2), jnp.float16), jnp.ones((2, 2), jnp.float16)).dtype == jnp.float16


def _attempt(scale: Any, weight: jax.Array, value: float) -> tuple[Any, jax.Array]:
    """One scaled update from a gradient that is the same everywhere."""
    gradient = scale.unscale(jax.grad(lambda w: scale.scale((w * value).sum()))(weight))
    finite = jmp.all_finite(gradient)
    return scale.adjust(finite), jmp.select_tree(finite, weight - 0.5 * gradient, weight)


def _dynamic_scaling() -> bool:
    scale, weight = _attempt(jmp.DynamicLossScale(jnp.float32(1024.0), period=1), _weight(), float("inf"))
    skipped = float(scale.loss_scale) == 512.0 and bool((weight == 1.0).all())
    scale, weight = _attempt(scale, weight, 1.0)
    return skipped and float(scale.loss_scale) == 1024.0 and bool((weight == 0.5).all())


def _static_scaling() -> bool:
    scale, weight = _attempt(jmp.StaticLossScale(jnp.float32(128.0)), _weight(), 1.0)
    return float(scale.loss_scale) == 128.0 and bool((weight == 0.5).all())


def _scaling_factors() -> bool:
    """Growth by 4 and backoff to one half."""
    scale: Any = jmp.DynamicLossScale(jnp.float32(16.0), period=1, factor=4)
    seen = []
    for finite in (True, False):
        scale = scale.adjust(jnp.array(finite))
        seen.append(float(scale.loss_scale))
    return seen == [64.0, 32.0]


def _scaling_disabled() -> bool:
    scale, weight = _attempt(jmp.NoOpLossScale(), _weight(), 1.0)
    return scale.loss_scale == 1 and bool((weight == 0.5).all())


def _explicit_unscale() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    return bool((scale.unscale(_weight(1024.0)) == 1.0).all())


def _two_optimizers() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    weights, optimizers = [_weight(), _weight()], [optax.sgd(0.5), optax.sgd(0.25)]
    gradients = scale.unscale(jax.grad(lambda ws: scale.scale(ws[0].sum() + ws[1].sum()))(weights))
    moved = []
    for weight, gradient, optimizer in zip(weights, gradients, optimizers, strict=True):
        updates, _ = optimizer.update(gradient, optimizer.init(weight), weight)
        moved.append(float(optax.apply_updates(weight, updates)[0]))
    return moved == [0.5, 0.75]


def _two_losses() -> bool:
    scale: Any = jmp.DynamicLossScale(jnp.float32(1024.0))
    _, pull = jax.vjp(lambda w: scale.scale(((w * 1.0).sum(), (w * 2.0).sum())), _weight())
    first, second = (jnp.float32(1.0), jnp.float32(0.0)), (jnp.float32(0.0), jnp.float32(1.0))
    gradients = [scale.unscale(pull(cotangent)[0]) for cotangent in (first, second)]
    return [float(gradient[0]) for gradient in gradients] == [1.0, 2.0]


def _accumulation() -> bool:
    window, weight = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=2), _weight()
    state, seen = window.init(weight), []
    for value in (1.0, 3.0):
        updates, state = window.update(_weight(value), state, weight)
        weight = optax.apply_updates(weight, updates)
        seen.append(float(weight[0]))
    return seen == [1.0, 0.0]


def _residuals(function: Callable[[jax.Array], jax.Array]) -> int:
    _, pull = jax.vjp(function, jnp.ones((64,)))
    return sum(array.nbytes for array in jax.tree.leaves(pull))


def _chain(x: jax.Array) -> jax.Array:
    for _ in range(4):
        x = jnp.sin(x)
    return x


def _recompute() -> bool:
    lean = jax.checkpoint(_chain)
    same = bool((jax.vjp(lean, jnp.ones((64,)))[1](jnp.ones((64,)))[0] != 0.0).all())
    return same and _residuals(lean) < _residuals(_chain)


def _recompute_nested() -> bool:
    inner = jax.checkpoint(_chain)
    return _residuals(jax.checkpoint(lambda x: inner(inner(x)))) < _residuals(lambda x: inner(inner(x)))


def _clip() -> bool:
    clip = optax.clip_by_global_norm(1.0)
    gradients, _ = clip.update(_weight(8.0), clip.init(_weight()))
    return float(optax.tree.norm(gradients)) < 1.001


def _rates(optimizer: optax.GradientTransformation, weight: Any, gradient: Any, count: int) -> list[Any]:
    state, found = optimizer.init(weight), []
    for _ in range(count):
        updates, state = optimizer.update(gradient, state, weight)
        found.append(jax.tree.map(lambda u: -float(u[0]), updates))
    return found


def _schedule() -> bool:
    steps = optax.join_schedules([optax.constant_schedule(0.5), optax.constant_schedule(0.25)], [1])
    return _rates(optax.sgd(steps), _weight(), _weight(), 2) == [0.5, 0.25]


def _groups() -> bool:
    weights = {"a": _weight(), "b": _weight()}
    groups = optax.partition({"0": optax.sgd(0.5), "1": optax.sgd(0.25)}, {"a": "0", "b": "1"})
    return _rates(groups, weights, weights, 1) == [{"a": 0.5, "b": 0.25}]


def _missing_gradients() -> bool:
    """Whether a parameter that the loss does not reach is told apart from one whose gradient is zero."""
    gradients = jax.grad(lambda weights: weights["a"].sum())({"a": _weight(), "b": _weight()})
    return gradients.get("b") is None


def _average() -> bool:
    return bool((optax.incremental_update(_weight(0.0), _weight(1.0), 0.25) == 0.75).all())


def _checkpoint() -> bool:
    weight = _weight(3.0)
    restored = serialization.from_bytes({"weight": jnp.zeros(2)}, serialization.to_bytes({"weight": weight}))
    return bool((restored["weight"] == weight).all())


def _saved_bytes() -> bool:
    return _residuals(jnp.sin) == 256


def _peak_bytes() -> bool:
    (device,) = _weight().devices()
    return device.memory_stats() is not None


def _tf32() -> bool:
    with jax.default_matmul_precision("tensorfloat32"):
        return bool((jnp.full((64, 64), 1.0 + 2.0**-12) @ jnp.eye(64) == 1.0).all())


PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_computes_low, jnp.float16),
    Capability.O1_BFLOAT16: partial(_computes_low, jnp.bfloat16),
    Capability.O2_FLOAT16: partial(_low_model, jnp.float16),
    Capability.O2_BFLOAT16: partial(_low_model, jnp.bfloat16),
    Capability.O3_FLOAT16: partial(_all_low, jnp.float16),
    Capability.O3_BFLOAT16: partial(_all_low, jnp.bfloat16),
    Capability.FLOAT64_HEADS: _float64_heads,
    Capability.OPERATIONS: _operations,
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.STATIC_SCALING: _static_scaling,
    Capability.SCALING_FACTORS: _scaling_factors,
    Capability.SCALING_DISABLED: _scaling_disabled,
    Capability.EXPLICIT_UNSCALE: _explicit_unscale,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: _recompute_nested,
    Capability.RECOMPUTE_CASES: _recompute,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.GROUPS: _groups,
    Capability.MISSING_GRADIENTS: _missing_gradients,
    Capability.AVERAGE: _average,
    Capability.CHECKPOINT: _checkpoint,
    Capability.SAVED_BYTES: _saved_bytes,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TF32: _tf32,
}


def probe(capability: Capability) -> bool | None:
    """True: seen to act; False: raised, warned or did nothing; None: there is no call of its own to observe."""
    call = PROBES.get(capability)
    if call is None:
        return None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            acted = call()
        except Exception:
            return False
    return acted and not warned
