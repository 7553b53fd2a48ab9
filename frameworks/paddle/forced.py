"""Drives `paddle.amp.GradScaler` on a CPU, where Paddle itself turns it off.

The scaler's constructor asks the tracer for the expected place and disables the scaler on anything but a GPU, an XPU or
a custom device, and `scale()` disables it for good unless the last precision scope of the process was a float16 one.
Everything behind those two questions (unscaling, detection, skipping, the automaton) is plain arithmetic that runs on a
CPU. `forced_scaler()` answers the first question with "GPU" and the second with "float16", only inside its scope, so
that the scaler's state machine can be tested where no GPU is. No kernel and no rule is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from paddle.amp import grad_scaler
from paddle.amp.auto_cast import amp_global_state


class _GpuPlace:
    def is_gpu_place(self) -> bool:
        return True

    def is_xpu_place(self) -> bool:
        return False

    def is_custom_place(self) -> bool:
        return False


class _Tracer:
    _expected_place = _GpuPlace()


@contextmanager
def forced_scaler() -> Iterator[None]:
    """Inside it a `GradScaler` can be made and used on a CPU; the tracer and `amp_dtype` are put back after it."""
    before = amp_global_state().amp_dtype
    amp_global_state().amp_dtype = "float16"
    try:
        with mock.patch.object(grad_scaler, "_dygraph_tracer", _Tracer):
            yield
    finally:
        amp_global_state().amp_dtype = before
