"""The operations of `Framework.run_op`, each with a function that makes its example inputs.

`CATALOGUE` maps a name to that function; the arrays are float32 unless said otherwise. Layouts are
channels-last; an operation reduces over its last axis unless its comment says otherwise.
"""

from collections.abc import Callable

import numpy as np

from fixtures.arrays import Array


def _positive(*shape: int) -> Array:
    count = int(np.prod(shape))
    return (np.linspace(0.25, 1.75, count, dtype=np.float32)).reshape(shape)


def _make_signed(*shape: int) -> Array:
    return (_positive(*shape) - 1.0).astype(np.float32)


def _labels() -> Array:
    return np.array([0, 2, 1, 3], np.int64)


def _unary(shape: tuple[int, ...] = (4, 8), *, positive: bool = False) -> Callable[[], tuple[Array, ...]]:
    return lambda: ((_positive if positive else _make_signed)(*shape),)


def _binary() -> tuple[Array, ...]:
    return _make_signed(4, 8), _positive(4, 8)


CATALOGUE: dict[str, Callable[[], tuple[Array, ...]]] = {
    # products
    "matmul": lambda: (_make_signed(4, 8), _positive(8, 4)),
    "batched_matmul": lambda: (_make_signed(2, 4, 8), _positive(2, 8, 4)),
    "einsum": lambda: (_make_signed(4, 8), _positive(8, 4)),  # ij,jk->ik
    "linear": lambda: (_make_signed(4, 8), _positive(8, 4), _make_signed(4)),  # x, weight (in, out), bias
    "conv2d": lambda: (_make_signed(2, 6, 6, 3), _positive(3, 3, 3, 4)),  # NHWC, HWIO, stride 1, no padding
    "attention": lambda: (
        _make_signed(2, 4, 8),
        _positive(2, 4, 8),
        _make_signed(2, 4, 8),
    ),  # q, k, v (N, T, D), one head
    # reductions
    "sum": _unary(),  # over everything
    "mean": _unary(),  # over everything
    "variance": _unary(),  # over everything, biased
    "norm": _unary(),  # 2-norm over everything
    "prod": _unary(positive=True),  # over everything
    "max": _unary(),  # over everything
    "cumsum": _unary(),
    "cumprod": _unary(positive=True),
    "logsumexp": _unary(),
    "softmax": _unary(),
    "log_softmax": _unary(),
    # losses: scalars, means
    "cross_entropy": lambda: (_make_signed(4, 8), _labels()),
    "squared_error": _binary,
    "absolute_error": _binary,
    "huber": _binary,
    "kl_divergence": lambda: (np.log(_positive(4, 8) / 8), _positive(4, 8) / 8),  # log-probabilities, probabilities
    "binary_cross_entropy_logits": lambda: (_make_signed(4, 8), _positive(4, 8) / 2),
    # normalisation: over the last axis, no affine parameters; batch_norm over the first, training mode;
    # instance_norm takes rows as the channels of one sample
    "layer_norm": _unary(),
    "instance_norm": _unary(),
    "batch_norm": _unary(),
    "rms_norm": _unary(),
    # elementwise
    "exp": _unary(),
    "expm1": _unary(),
    "log": _unary(positive=True),
    "log1p": _unary(positive=True),
    "pow": _unary(positive=True),  # cubed, exponent as a Python float
    "square": _unary(),
    "sqrt": _unary(positive=True),
    "rsqrt": _unary(positive=True),
    "reciprocal": _unary(positive=True),
    "abs": _unary(),
    "sin": _unary(),
    "cos": _unary(),
    "tanh": _unary(),
    "sigmoid": _unary(),
    "relu": _unary(),
    "leaky_relu": _unary(),
    "elu": _unary(),
    "gelu": _unary(),
    "silu": _unary(),
    "softplus": _unary(),
    "erf": _unary(),
    # two operands
    "add": _binary,
    "subtract": _binary,
    "multiply": _binary,
    "divide": _binary,
    "maximum": _binary,
    "where": _binary,  # where(a > 0, a, b)
    "concatenate": _binary,
    "stack": _binary,
    # pooling on NHWC, size 2; indexing; integers
    "max_pool": _unary((2, 4, 4, 3)),
    "average_pool": _unary((2, 4, 4, 3)),
    "dropout": _unary(),  # rate 0.5, training
    "embedding": lambda: (_labels(), _make_signed(8, 4)),  # ids, table
    "gather_ids": lambda: (np.array([2049, 4095, 2047], np.int64),),  # ids + 0, unchanged
    "argmax": _unary(),
    "transpose": _unary(),
    "reshape": _unary(),  # flattened
}
