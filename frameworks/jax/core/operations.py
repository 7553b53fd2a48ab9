"""The suite's operations as calls of `jax.numpy`, `jax.nn`, `optax` and Linen's functions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from frameworks.contract import FunctionFormat

_IMAGES = ("NHWC", "HWIO", "NHWC")


def _apply_norm(x: Array, module: nn.Module) -> Array:
    return jnp.asarray(module.apply({}, x))


def _dropout(x: Array) -> Array:
    return jnp.asarray(nn.Dropout(0.5, deterministic=False).apply({}, x, rngs={"dropout": jax.random.key(0)}))


def _attention(query: Array, key: Array, value: Array) -> Array:
    q, k, v = (x[:, :, None] for x in (query, key, value))
    return jax.nn.dot_product_attention(q, k, v)[:, :, 0]


def _instance_norm(x: Array) -> Array:
    """Rows are the channels of one sample, which Linen has last."""
    return _apply_norm(x.T[None], nn.InstanceNorm(epsilon=1e-5, use_bias=False, use_scale=False))[0].T


def _pool(pool: Callable[..., Array], x: Array) -> Array:
    return pool(x, (2, 2), strides=(2, 2))


OPERATIONS: dict[str, Callable[..., Array]] = {
    "matmul": jnp.matmul,
    "batched_matmul": jnp.matmul,
    "einsum": lambda a, b: jnp.einsum("ij,jk->ik", a, b),
    "linear": lambda x, weight, bias: x @ weight + bias,
    "conv2d": lambda x, kernel: lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=_IMAGES),
    "attention": _attention,
    "sum": jnp.sum,
    "mean": jnp.mean,
    "variance": jnp.var,
    "norm": lambda x: jnp.linalg.norm(x.ravel()),
    "prod": jnp.prod,
    "max": jnp.max,
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "cumprod": lambda x: jnp.cumprod(x, -1),
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "cross_entropy": lambda x, ids: optax.softmax_cross_entropy_with_integer_labels(x, ids).mean(),
    "squared_error": lambda a, b: optax.squared_error(a, b).mean(),
    "absolute_error": lambda a, b: jnp.abs(a - b).mean(),
    "huber": lambda a, b: optax.huber_loss(a, b).mean(),
    "kl_divergence": lambda logarithms, x: optax.losses.kl_divergence(logarithms, x).mean(),
    "binary_cross_entropy_logits": lambda x, y: optax.sigmoid_binary_cross_entropy(x, y).mean(),
    "layer_norm": lambda x: _apply_norm(x, nn.LayerNorm(epsilon=1e-5, use_bias=False, use_scale=False)),
    "batch_norm": lambda x: jax.nn.standardize(x, axis=0, epsilon=1e-5),
    "instance_norm": _instance_norm,
    "rms_norm": lambda x: _apply_norm(x, nn.RMSNorm(epsilon=1e-5, use_scale=False)),
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "pow": lambda x: jnp.power(x, 3.0),
    "square": jnp.square,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "reciprocal": jnp.reciprocal,
    "abs": jnp.abs,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
    "erf": lax.erf,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "maximum": jnp.maximum,
    "where": lambda a, b: jnp.where(a > 0, a, b),
    "concatenate": lambda a, b: jnp.concatenate([a, b], -1),
    "stack": lambda a, b: jnp.stack([a, b]),
    "max_pool": lambda x: _pool(nn.max_pool, x),
    "average_pool": lambda x: _pool(nn.avg_pool, x),
    "dropout": _dropout,
    "embedding": lambda ids, table: jnp.take(table, ids, axis=0),
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: jnp.argmax(x, -1),
    "transpose": lambda x: jnp.swapaxes(x, -1, -2),
    "reshape": jnp.ravel,
}


WAYS: dict[str, FunctionFormat] = {"custom_vjp": "input"}


@jax.custom_vjp
def square(x: jax.Array) -> jax.Array:
    """The operation of `fixtures.model.UserFunction`."""
    return x * x


def _forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x * x, x


def _backward(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (gradient * jnp.clip(2.0 * x, -1.0, 1.0),)


square.defvjp(_forward, _backward)


def _pair(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:  # noqa: ARG001
    return scale * a * b, b + c


def _pair_forward(a: Any, b: Any, c: Any, scale: float, asked: list[tuple[bool, ...]]) -> tuple[Any, Any]:
    marks = tuple(() if argument.perturbed else None for argument in (a, b, c))
    return _pair(a.value, b.value, c.value, scale, asked), (a.value, b.value, marks)


def _pair_backward(scale: float, asked: list[tuple[bool, ...]], residuals: Any, gradients: Any) -> tuple[Any, ...]:
    a, b, marks = residuals
    needs = tuple(mark is not None for mark in marks)
    asked.append(needs)
    y, z = (jnp.zeros(gradient.shape) if isinstance(gradient, SymbolicZero) else gradient for gradient in gradients)
    every = (2.0 * scale * y * b, scale * y * a + z, z)
    return tuple(gradient if needed else None for gradient, needed in zip(every, needs, strict=True))


pair = jax.custom_vjp(_pair, nondiff_argnums=(3, 4))
"""The operation of `fixtures.model`; the list takes what each backward pass finds."""
pair.defvjp(_pair_forward, _pair_backward, symbolic_zeros=True)
