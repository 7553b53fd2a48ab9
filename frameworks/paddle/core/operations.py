"""Paddle's own functions for the operations of `frameworks.operations`, for dynamic and static mode alike."""

import re
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F


def _batch_norm(x: Any) -> Any:
    width = x.shape[-1]
    return F.batch_norm(x, paddle.zeros([width]), paddle.ones([width]), training=True)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "matmul": paddle.matmul,
    "batched_matmul": paddle.bmm,
    "einsum": lambda a, b: paddle.einsum("ij,jk->ik", a, b),
    "linear": F.linear,
    "conv2d": lambda x, weight: F.conv2d(x, weight.transpose([3, 2, 0, 1]), data_format="NHWC"),
    "attention": lambda *qkv: F.scaled_dot_product_attention(*(x.unsqueeze(2) for x in qkv)).squeeze(2),
    "sum": paddle.sum,
    "mean": paddle.mean,
    "variance": lambda x: paddle.var(x, unbiased=False),
    "norm": lambda x: paddle.linalg.norm(x, p=2),
    "prod": paddle.prod,
    "max": paddle.max,
    "cumsum": lambda x: paddle.cumsum(x, axis=-1),
    "cumprod": lambda x: paddle.cumprod(x, dim=-1),
    "logsumexp": lambda x: paddle.logsumexp(x, axis=-1),
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "cross_entropy": F.cross_entropy,
    "squared_error": F.mse_loss,
    "absolute_error": F.l1_loss,
    "huber": F.smooth_l1_loss,
    "kl_divergence": lambda a, b: F.kl_div(a, b, reduction="batchmean"),
    "binary_cross_entropy_logits": F.binary_cross_entropy_with_logits,
    "layer_norm": lambda x: F.layer_norm(x, [x.shape[-1]]),
    "batch_norm": _batch_norm,
    "instance_norm": lambda x: F.instance_norm(x.unsqueeze(0)).squeeze(0),
    "rms_norm": lambda x: F.rms_norm(x, [x.shape[-1]]),
    "exp": paddle.exp,
    "expm1": paddle.expm1,
    "log": paddle.log,
    "log1p": paddle.log1p,
    "pow": lambda x: paddle.pow(x, 3.0),
    "square": paddle.square,
    "sqrt": paddle.sqrt,
    "rsqrt": paddle.rsqrt,
    "reciprocal": paddle.reciprocal,
    "abs": paddle.abs,
    "sin": paddle.sin,
    "cos": paddle.cos,
    "tanh": paddle.tanh,
    "sigmoid": F.sigmoid,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "erf": paddle.erf,
    "add": paddle.add,
    "subtract": paddle.subtract,
    "multiply": paddle.multiply,
    "divide": paddle.divide,
    "maximum": paddle.maximum,
    "where": lambda a, b: paddle.where(a > 0, a, b),
    "concatenate": lambda a, b: paddle.concat([a, b], axis=-1),
    "stack": lambda a, b: paddle.stack([a, b]),
    "max_pool": lambda x: F.max_pool2d(x, 2, data_format="NHWC"),
    "average_pool": lambda x: F.avg_pool2d(x, 2, data_format="NHWC"),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "embedding": F.embedding,
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: paddle.argmax(x, axis=-1),
    "transpose": paddle.t,
    "reshape": paddle.flatten,
}

_MISSING_KERNEL = re.compile(
    r"""\(NotFound\)\ The\ kernel\ .*           # dynamic mode
    | Check\ data\ type\ error\ for\ op[^(]*    # the static graph's verifier
    | The\ data\ type\ of\ .*\ must\ be\ .*,\ but\ received\ .*  # a Python function's own check
    """,
    re.VERBOSE,
)
_LONGEST = 160

_LISTED: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "matmul_v2"),
    "linear": ("matmul", "matmul_v2", "linear_v2"),
    "batched_matmul": ("bmm",),
    "attention": ("matmul", "matmul_v2", "flash_attn"),
    "sum": ("sum", "reduce_sum"),
    "mean": ("mean", "reduce_mean"),
    "variance": ("mean", "reduce_mean"),
    "prod": ("prod", "reduce_prod"),
    "max": ("max", "reduce_max"),
    "norm": ("p_norm", "pnorm"),
    "cross_entropy": ("cross_entropy_with_softmax", "softmax_with_cross_entropy", "cross_entropy"),
    "binary_cross_entropy_logits": ("sigmoid_cross_entropy_with_logits",),
    "max_pool": ("pool2d",),
    "average_pool": ("pool2d",),
    "concatenate": ("concat",),
    "transpose": ("transpose", "transpose2"),
    "embedding": ("embedding", "lookup_table_v2"),
    "add": ("add", "elementwise_add"),
    "multiply": ("multiply", "elementwise_mul"),
}


def listed_names(op: str) -> tuple[str, ...]:
    """The names by which Paddle's white and black lists know an operation: dynamic mode's and the static graph's."""
    return _LISTED.get(op, (op,))


def missing_kernel(error: Exception) -> str | None:
    """The line in which Paddle says that an operation has no kernel for a format here; None for any other error."""
    result = _MISSING_KERNEL.search(str(error))
    if result is None:
        return None
    line = " ".join(result[0].split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
