"""Byte counts by Paddle's own allocator statistics."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core


def _allocated() -> int:
    if paddle.device.get_device().startswith("gpu"):
        return int(paddle.device.cuda.memory_allocated())
    return int(core.host_memory_stat_current_value("Allocated", 0))


def bytes_held(forward: Callable[[], Any]) -> int:
    """Bytes that the allocator holds more after `forward` than before it, while its result is alive."""
    gc.collect()
    before = _allocated()
    result = forward()
    gc.collect()
    held = _allocated() - before
    del result
    return held


def peak_bytes() -> int | None:
    """The CUDA allocator's peak in this process; None on a CPU, whose allocator keeps none."""
    if not paddle.device.get_device().startswith("gpu"):
        return None
    return int(paddle.device.cuda.max_memory_allocated())
