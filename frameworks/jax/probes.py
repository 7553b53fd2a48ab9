"""The own calls of JAX, Flax, Optax and JMP, run without this adapter's guards: does each take effect?

For what is refused there is a try of every way that a user has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jmp
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from flax.training.dynamic_scale import DynamicScale

from frameworks.contract import Attempt, Capability
from frameworks.jax.arrays import wide_formats
from frameworks.jax.refusals import second_unscale


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
    with wide_formats(True):
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
    """Growth by 4 and backoff to one half, by Flax's scale."""
    scale = DynamicScale(growth_factor=4.0, backoff_factor=0.5, growth_interval=1, scale=jnp.float32(16.0))
    seen = []
    for slope in (1.0, 1.0, float("inf")):
        scale = scale.value_and_grad(lambda w, slope=slope: (w * slope).sum())(_weight()).dynamic_scale
        seen.append(float(scale.scale))
    return {later / earlier for earlier, later in zip([16.0, *seen], seen, strict=False)} == {1.0, 4.0, 0.5}


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


def _partial_window() -> bool:
    """Windows of two and of one micro-batch, as `every_k_schedule` says before they begin."""
    window = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=lambda step: jnp.array([2, 1])[step])
    weight = _weight()
    state, seen = window.init(weight), []
    for _ in range(3):
        updates, state = window.update(_weight(), state, weight)
        weight = optax.apply_updates(weight, updates)
        seen.append(float(weight[0]))
    return seen == [1.0, 0.5, 0.0]


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


def _segment_calls() -> bool:
    """Runs of a function and of its recomputation, counted by a callback."""
    begun: list[int] = []

    def told(_: Any) -> None:
        begun.append(1)

    def segment(x: jax.Array) -> jax.Array:
        jax.debug.callback(told, x[0])
        return jnp.sin(x).sum()

    jax.block_until_ready(jax.grad(jax.checkpoint(segment))(_weight()))
    jax.effects_barrier()
    return len(begun) == 2


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
    """Whether a parameter that the loss does not reach has no gradient, or Optax takes None for one."""
    weights = {"a": _weight(), "b": _weight()}
    gradients = jax.grad(lambda given: given["a"].sum())(weights)
    return gradients.get("b") is None or any(_takes_none(make) for make in (optax.sgd, optax.adam, optax.adamw))


def _takes_none(make: Callable[[float], optax.GradientTransformation]) -> bool:
    weights, optimizer = {"a": _weight(), "b": _weight()}, make(0.5)
    try:
        updates, _ = optimizer.update({"a": _weight(), "b": None}, optimizer.init(weights), weights)
        optax.apply_updates(weights, updates)
    except (TypeError, ValueError):
        return False
    return True


def _average() -> bool:
    return bool((optax.incremental_update(_weight(0.0), _weight(1.0), 0.25) == 0.75).all())


def _checkpoint() -> bool:
    weight = _weight(3.0)
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/run", {"weight": weight})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(f"{folder}/run", {"weight": _weight(0.0)})
    return bool((restored["weight"] == weight).all())


def _saved_bytes() -> bool:
    return _residuals(jnp.sin) == 256


def _peak_bytes() -> bool:
    (device,) = _weight().devices()
    return device.memory_stats() is not None


def _trace() -> bool:
    """What a module sows, and the gradient for what it perturbs."""

    class Doubled(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = self.perturb("inside", 2.0 * x)
            self.sow("intermediates", "inside", x)
            return jnp.square(x).sum()

    def loss(perturbations: Any) -> tuple[jax.Array, Any]:
        return Doubled().apply({"perturbations": perturbations}, _weight(), mutable=["intermediates"])

    gradient, sown = jax.grad(loss, has_aux=True)({"inside": _weight(0.0)})
    inside = sown["intermediates"]["inside"][0]
    return bool((inside == 2.0).all() and (gradient["inside"] == 4.0).all())


def _tf32() -> bool:
    return any(_rounds_operands(precision) for precision in ("tensorfloat32", "TF32_TF32_F32"))


def _rounds_operands(precision: str) -> bool:
    try:
        with jax.default_matmul_precision(precision):
            return bool((jnp.full((64, 64), 1.0 + 2.0**-12) @ jnp.eye(64) == 1.0).all())
    except (ValueError, NotImplementedError):
        return False


def _autocast_scope() -> bool:
    """A product of float32 matrices in a 16-bit format, inside any scope of precision that JAX has."""
    found = [_formats_inside(name) for name in ("bfloat16", *(preset.name for preset in jax.lax.DotAlgorithmPreset))]
    return {"float16", "bfloat16"} & set(found) != set()


def _formats_inside(precision: str) -> str:
    """Format of such a product inside a scope; empty where the platform has no products of that precision."""
    try:
        with jax.default_matmul_precision(precision):
            return (jnp.ones((8, 8)) @ jnp.eye(8)).dtype.name
    except (ValueError, NotImplementedError):
        return ""


def _autocast_lists() -> bool:
    """A scope that takes names of operations."""
    try:
        with jax.default_matmul_precision("bfloat16", operations=["matmul"]):
            return True
    except TypeError:
        return False


ATTEMPTS: dict[Capability, Attempt] = {
    Capability.O1_FLOAT16: partial(_computes_low, jnp.float16),
    Capability.O1_BFLOAT16: partial(_computes_low, jnp.bfloat16),
    Capability.O2_FLOAT16: partial(_low_model, jnp.float16),
    Capability.O2_BFLOAT16: partial(_low_model, jnp.bfloat16),
    Capability.O3_FLOAT16: partial(_all_low, jnp.float16),
    Capability.O3_BFLOAT16: partial(_all_low, jnp.bfloat16),
    Capability.FLOAT64_HEADS: _float64_heads,
    Capability.AUTOCAST_SCOPE: _autocast_scope,
    Capability.AUTOCAST_LISTS: _autocast_lists,
    Capability.OPERATIONS: _operations,
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.STATIC_SCALING: _static_scaling,
    Capability.SCALING_FACTORS: _scaling_factors,
    Capability.SCALING_DISABLED: _scaling_disabled,
    Capability.EXPLICIT_UNSCALE: _explicit_unscale,
    Capability.SECOND_UNSCALE: second_unscale,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.ACCUMULATION: _accumulation,
    Capability.PARTIAL_WINDOW: _partial_window,
    Capability.RECOMPUTE: _recompute,
    Capability.RECOMPUTE_NESTED: _recompute_nested,
    Capability.RECOMPUTE_CASES: _recompute,
    Capability.SEGMENT_CALLS: _segment_calls,
    Capability.CLIP: _clip,
    Capability.SCHEDULE: _schedule,
    Capability.GROUPS: _groups,
    Capability.MISSING_GRADIENTS: _missing_gradients,
    Capability.AVERAGE: _average,
    Capability.CHECKPOINT: _checkpoint,
    Capability.SAVED_BYTES: _saved_bytes,
    Capability.PEAK_BYTES: _peak_bytes,
    Capability.TF32: _tf32,
    Capability.TRACE: _trace,
}
