"""The suite's operations as PyTorch calls; images go from channels-last to channels-second and back."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def _second(x: Tensor) -> Tensor:
    return x.movedim(-1, 1)


def _last(x: Tensor) -> Tensor:
    return x.movedim(1, -1)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "matmul": torch.matmul,
    "batched_matmul": torch.bmm,
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "linear": lambda x, weight, bias: F.linear(x, weight.t(), bias),
    "conv2d": lambda x, kernel: _last(F.conv2d(_second(x), kernel.permute(3, 2, 0, 1))),
    "attention": lambda q, k, v: F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0],
    "sum": torch.sum,
    "mean": torch.mean,
    "variance": lambda x: torch.var(x, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "prod": torch.prod,
    "max": torch.max,
    "cumsum": lambda x: torch.cumsum(x, -1),
    "cumprod": lambda x: torch.cumprod(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "cross_entropy": F.cross_entropy,
    "squared_error": F.mse_loss,
    "absolute_error": F.l1_loss,
    "huber": F.huber_loss,
    "kl_divergence": lambda a, b: F.kl_div(a, b, reduction="batchmean"),
    "binary_cross_entropy_logits": F.binary_cross_entropy_with_logits,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "instance_norm": lambda x: torch.nn.InstanceNorm1d(x.shape[0], device=x.device)(x),
    "batch_norm": lambda x: torch.nn.BatchNorm1d(x.shape[-1], device=x.device)(x),  # with running statistics
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: torch.pow(x, 3.0),
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "abs": torch.abs,
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "erf": torch.erf,
    "add": torch.add,
    "subtract": torch.subtract,
    "multiply": torch.multiply,
    "divide": torch.divide,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "concatenate": lambda a, b: torch.cat([a, b], -1),
    "stack": lambda a, b: torch.stack([a, b]),
    "max_pool": lambda x: _last(F.max_pool2d(_second(x), 2)),
    "average_pool": lambda x: _last(F.avg_pool2d(_second(x), 2)),
    "dropout": lambda x: F.dropout(x, 0.5, training=True),
    "embedding": F.embedding,
    "gather_ids": lambda ids: ids + 0,
    "argmax": lambda x: torch.argmax(x, -1),
    "transpose": lambda x: x.transpose(-1, -2),
    "reshape": torch.flatten,
}
