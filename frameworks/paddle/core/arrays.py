"""Paddle tensors to NumPy arrays and back, in their true formats."""

from typing import Any

import ml_dtypes
import numpy as np
import paddle

from fixtures.arrays import Array


def format_name(dtype: Any) -> str:
    """Name of a Paddle format, such as "float32"."""
    return str(dtype).rsplit(".", 1)[-1].rsplit("DataType.", 1)[-1].lower()


def to_numpy(tensor: Any) -> Array:
    """A copy of a tensor or array; bfloat16, which Paddle returns as bits in uint16, becomes ml_dtypes' bfloat16."""
    value = np.array(tensor if isinstance(tensor, np.ndarray) else tensor.numpy())
    return value.view(ml_dtypes.bfloat16) if format_name(tensor.dtype) in ("bfloat16", "uint16") else value


def to_tensor(value: Array, like: Any = None) -> Any:
    """`value` as a tensor on the current device, in the format of the tensor `like` or else in its own."""
    array = np.ascontiguousarray(value)
    wanted = str(array.dtype) if like is None else format_name(like.dtype)
    if wanted == "bfloat16":
        return paddle.to_tensor(array.astype(np.float32)).astype("bfloat16")
    return paddle.to_tensor(array.astype(wanted))


def copy_of_gradient(parameter: Any) -> Any:
    """A copy of the parameter's gradient, whose memory `clear_grad` frees under every tensor that shares it."""
    return None if parameter.grad is None else parameter.grad.detach().clone()


def put_gradient(parameter: Any, value: Any) -> None:
    """Makes `value` the gradient of `parameter`, which has none if it is None; Paddle 2 takes no None by assignment."""
    if value is None:
        parameter.clear_gradient(False)
    else:
        parameter.grad = value


def canonical(value: Array) -> Array:
    """A stored parameter in canonical layout: Paddle keeps convolution kernels as (out, in, height, width)."""
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value


def stored(value: Array) -> Array:
    """A canonical parameter in Paddle's layout."""
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
