"""Paddle tensors to NumPy arrays and back, in their true formats, and the bytes that autograd saves."""

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle.base import core

from fixtures.arrays import Array
from frameworks.base import GPU
from frameworks.paddle.core.devices import in_use


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


def to_paddle_layout(value: Array) -> Array:
    """A canonical parameter in Paddle's layout."""
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value


def _count_allocated_bytes() -> int:
    kind, number = in_use()
    if kind == "cpu":
        return int(core.host_memory_stat_current_value("Allocated", 0))
    if kind == GPU:
        return int(paddle.device.cuda.memory_allocated())
    return int(core.device_memory_stat_current_value("Allocated", number))


def allocated_bytes(forward: Callable[[], Any]) -> int:
    """Bytes that the allocator holds more after `forward` than before it, while its result is alive."""
    gc.collect()
    before = _count_allocated_bytes()
    result = forward()
    gc.collect()
    growth = _count_allocated_bytes() - before
    del result
    return growth


def peak_bytes() -> int | None:
    """The device allocator's peak in this process; None on a CPU, whose allocator keeps none."""
    kind, number = in_use()
    if kind == "cpu":
        return None
    if kind == GPU:
        return int(paddle.device.cuda.max_memory_allocated())
    return int(core.device_memory_stat_peak_value("Allocated", number))
