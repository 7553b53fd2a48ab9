"""Byte counts by Paddle's own allocator statistics."""

import gc
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core

from frameworks.base import GPU
from frameworks.paddle.core.devices import in_use


def _allocated() -> int:
    kind, number = in_use()
    if kind == "cpu":
        return int(core.host_memory_stat_current_value("Allocated", 0))
    if kind == GPU:
        return int(paddle.device.cuda.memory_allocated())
    return int(core.device_memory_stat_current_value("Allocated", number))


def allocated_bytes(forward: Callable[[], Any]) -> int:
    """Bytes that the allocator holds more after `forward` than before it, while its result is alive."""
    gc.collect()
    before = _allocated()
    result = forward()
    gc.collect()
    growth = _allocated() - before
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
