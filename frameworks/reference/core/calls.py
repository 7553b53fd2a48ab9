"""Calls outside a model: operations of the catalogue, a recomputed product, and uses of a user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import SCALE, FunctionUse
from frameworks.base.recompute import FACTOR, NO_GRAD_INPUT, WEIGHTS_CHANGE, FailingRerun, recomputed_call
from frameworks.contract import FunctionResult, OpResult, RecomputeCase, RecomputeResult
from frameworks.reference.core.arithmetic import UNARY, Operations, Round, normalise, softmax
from frameworks.reference.core.tape import Tensor, recompute_function, record_pullbacks, tensor

_EPSILON = 1e-5
Carrier = Callable[..., Any]
Pair = tuple[Any, Any]


def _log_softmax(a: Any, r: Round) -> Any:
    shifted = r(a - a.max(axis=-1, keepdims=True))
    return shifted - r(np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def _logsumexp(a: Any, r: Round) -> Any:
    top = a.max(axis=-1, keepdims=True)
    return (top + r(np.log(np.sum(np.exp(r(a - top)), axis=-1, keepdims=True))))[..., 0]


def _cross_entropy(a: Any, labels: Array, r: Round) -> Any:
    return -np.take_along_axis(r(_log_softmax(a, r)), labels[..., None], axis=-1).mean()


def _huber(a: Any, b: Any, r: Round) -> Any:
    distance = np.abs(r(a - b))
    return np.where(distance <= 1.0, 0.5 * distance**2, distance - 0.5).mean()


def _binary_cross_entropy(a: Any, b: Any, r: Round) -> Any:
    return r(np.maximum(a, 0.0) - a * b + np.log1p(np.exp(-np.abs(a)))).mean()


def _rms_norm(a: Any, r: Round) -> Any:
    return a * r(1.0 / np.sqrt(r(np.mean(a * a, axis=-1, keepdims=True)) + _EPSILON))


def _average_pool(a: Any, _: Round) -> Any:
    count, height, width, channels = a.shape
    return a.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def _dropout(a: Any, _: Round) -> Any:
    return np.where(np.random.default_rng(0).random(a.shape) >= 0.5, a / 0.5, 0.0)


CARRIERS: dict[str, Carrier] = {
    "sum": lambda a, _: np.sum(a),
    "mean": lambda a, _: np.mean(a),
    "variance": lambda a, r: np.mean(r(a - r(np.mean(a))) ** 2),
    "norm": lambda a, r: np.sqrt(r(np.sum(a * a))),
    "prod": lambda a, _: np.prod(a),
    "max": lambda a, _: np.max(a),
    "cumsum": lambda a, _: np.cumsum(a, axis=-1),
    "cumprod": lambda a, _: np.cumprod(a, axis=-1),
    "logsumexp": _logsumexp,
    "softmax": softmax,
    "log_softmax": _log_softmax,
    "cross_entropy": _cross_entropy,
    "squared_error": lambda a, b, r: np.mean(r(a - b) ** 2),
    "absolute_error": lambda a, b, r: np.mean(np.abs(r(a - b))),
    "huber": _huber,
    "kl_divergence": lambda a, b, r: np.mean(np.sum(r(r(b * r(np.log(b))) - r(b * a)), axis=-1)),
    "binary_cross_entropy_logits": _binary_cross_entropy,
    "layer_norm": lambda a, r: normalise(a, (-1,), _EPSILON, r)[0],
    "instance_norm": lambda a, r: normalise(a, (-1,), _EPSILON, r)[0],
    "batch_norm": lambda a, r: normalise(a, (0,), _EPSILON, r)[0],
    "rms_norm": _rms_norm,
    "exp": lambda a, _: np.exp(a),
    "expm1": lambda a, _: np.expm1(a),
    "log": lambda a, _: np.log(a),
    "log1p": lambda a, _: np.log1p(a),
    "pow": lambda a, _: a**3.0,
    "square": lambda a, _: a * a,
    "sqrt": lambda a, _: np.sqrt(a),
    "rsqrt": lambda a, _: 1.0 / np.sqrt(a),
    "reciprocal": lambda a, _: 1.0 / a,
    "abs": lambda a, _: np.abs(a),
    "sin": lambda a, _: np.sin(a),
    "cos": lambda a, _: np.cos(a),
    "leaky_relu": lambda a, _: np.where(a > 0.0, a, 0.01 * a),
    "elu": lambda a, _: np.where(a > 0.0, a, np.expm1(np.minimum(a, 0.0))),
    "silu": lambda a, r: a * r(UNARY["sigmoid"](a)),
    "softplus": lambda a, _: np.logaddexp(0.0, a),
    "add": lambda a, b, _: a + b,
    "subtract": lambda a, b, _: a - b,
    "multiply": lambda a, b, _: a * b,
    "divide": lambda a, b, _: a / b,
    "maximum": lambda a, b, _: np.maximum(a, b),
    "where": lambda a, b, _: np.where(a > 0.0, a, b),
    "concatenate": lambda a, b, _: np.concatenate([a, b], axis=-1),
    "stack": lambda a, b, _: np.stack([a, b]),
    "average_pool": _average_pool,
    "dropout": _dropout,
    "transpose": lambda a, _: a.T,
    "reshape": lambda a, _: a.reshape(-1),
    **{kind: lambda a, _, f=function: f(a) for kind, function in UNARY.items()},
}
"""Operations that are functions of float64 carriers, by name; the last argument rounds an intermediate value."""


def _convolution(ops: Operations, x: Tensor, weight: Tensor) -> Tensor:
    bias = Tensor(np.zeros(weight.shape[-1]), weight.format)
    return ops.convolution(x, weight, bias, stride=1, padding=0)


TENSORS: dict[str, Callable[..., Tensor]] = {
    "matmul": lambda ops, a, b: ops.matmul(a, b),
    "batched_matmul": lambda ops, a, b: ops.matmul(a, b, "batched_matmul"),
    "einsum": lambda ops, a, b: ops.matmul(a, b, "einsum"),
    "linear": lambda ops, x, weight, bias: ops.linear(x, weight, bias),
    "conv2d": _convolution,
    "attention": lambda ops, q, k, v: ops.attention(q, k, v),
    "max_pool": lambda ops, x: ops.max_pool(x, 2),
    "embedding": lambda ops, ids, table: ops.embedding(ids, table),
    "gather_ids": lambda _, ids: Tensor(ids.value + 0, ids.format),
    "argmax": lambda _, x: Tensor(np.argmax(x.value, axis=-1), "int64"),
}
"""Operations that call a method of `Operations`, or that compute only integers, by name."""


def run_op(ops: Operations, op: str, *arrays: Array) -> OpResult:
    """Runs one operation of `frameworks.operations` in the open precision scope.

    Raises:
        ValueError: the catalogue has no operation of that name.
    """
    operands = [tensor(np.asarray(array)) for array in arrays]
    with np.errstate(all="ignore"):
        if op in TENSORS:
            result = TENSORS[op](ops, *operands)
        elif op in CARRIERS:
            result = ops.apply(op, CARRIERS[op], *operands)
        else:
            raise ValueError(f"unknown operation {op!r}")
    value = np.asarray(result.value)
    return OpResult(value.astype(ops.rounding.dtype(result.format)) if result.floating else value, result.format)


def recompute_product(ops: Operations, case: RecomputeCase, x: Array, w: Array) -> RecomputeResult:
    """Σ tanh(x·w) and its gradients, recomputed with the arguments of `case`; x (n, m) and w (m, k), float32.

    Raises:
        ValueError: `case` is unknown.
        RuntimeError: in "weights-changed", w was changed before backward; in "raises", the second run raised.
    """
    rerun = FailingRerun()

    def value(x: Any, w: Any) -> Any:
        product = ops.matmul(Tensor(x, "float32"), Tensor(w, "float32"))
        return ops.apply("sum", lambda a, _: anp.sum(a), ops.activation("tanh", product)).value

    def failing(x: Any, w: Any) -> Any:
        rerun.begin()
        return value(x, w)

    def call(pair: Pair) -> Any:
        return recomputed_call(case, recompute_function, value, failing, *pair)

    carriers = x.astype(np.float64), w.astype(np.float64)
    if case == NO_GRAD_INPUT:
        (total,), (pull,) = record_pullbacks(lambda weight: [call((carriers[0], weight))], carriers[1])
        gradients = (None, pull(np.ones(())))
    else:
        (total,), (pull,) = record_pullbacks(lambda pair: [call(pair)], carriers)
        if case == WEIGHTS_CHANGE:
            np.multiply(carriers[1], FACTOR, out=carriers[1])
        gradients = pull(np.ones(()))
    stored = ops.rounding.dtype("float32")
    gx, gw = (None if g is None else ops.rounding.round(g, "float32").astype(stored) for g in gradients)
    return RecomputeResult(float(total), gx, gw)


class ReferenceFunction:
    """An operation of three inputs whose backward pass the user wrote. Faults override a method."""

    def run_uses(self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None) -> FunctionResult:
        """Runs all uses; returns the inputs that needed a gradient in each, and the gradients summed over the uses."""
        needs = self.needs(use.needs, recomputed=variant is not None)
        y, z = (np.full_like(inputs[0], name in use.outputs) for name in "yz")
        gradients = self.backward(inputs, y, z)
        results = [
            self.sum_gradients([gradient] * use.times) if asked else None
            for asked, gradient in zip(needs, gradients, strict=True)
        ]
        return FunctionResult((needs,) * use.times, tuple(results))

    def needs(self, needs: tuple[bool, bool, bool], *, recomputed: bool) -> tuple[bool, bool, bool]:
        """Returns whether each input needs a gradient, as the framework reports it to the backward pass."""
        return needs

    def backward(self, inputs: tuple[Array, Array, Array], y: Array, z: Array) -> tuple[Array, ...]:
        """The user's backward pass: the gradients of the three inputs, from the gradients of the outputs y and z."""
        a, b, _ = inputs
        return 2.0 * SCALE * y * b, SCALE * y * a + z, z

    def sum_gradients(self, gradients: list[Array]) -> Array:
        """The gradient of one input, from its gradients in each use."""
        return np.asarray(sum(gradients[1:], gradients[0]))
