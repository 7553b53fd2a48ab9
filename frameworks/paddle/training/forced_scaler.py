"""Drives `paddle.amp.GradScaler` on a CPU, where Paddle itself turns it off.

The scaler's constructor asks the tracer for the expected place and disables the scaler on anything but a GPU, an XPU or
a custom device, and `scale()` disables it for good unless the last precision scope of the process was a float16 one.
Everything behind those two questions (unscaling, detection, skipping, the automaton) is plain arithmetic that runs on a
CPU. `forced_scaler()` answers the first question with "GPU" and the second with "float16", only inside its scope, so
that the scaler's state machine can be tested where no GPU is. No kernel and no rule is replaced.

The kernels differ in one thing: a CPU's looks for non-finite gradients before it unscales them, a GPU's afterwards. So
what unscaling itself makes non-finite, by a scale of 0 for instance, is found on a GPU alone: `refuse_what_differs`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import paddle
from paddle.amp import grad_scaler
from paddle.amp.auto_cast import amp_global_state

from fixtures.arrays import Array
from frameworks.contract import Capability, Unsupported

ONLY_A_GPU = (
    "a CPU's kernel looks for non-finite gradients before it unscales them, a GPU's afterwards: only a GPU shows what "
    "an update does whose finite gradients unscaling makes non-finite"
)


_PLACE = SimpleNamespace(is_gpu_place=lambda: True, is_xpu_place=lambda: False, is_custom_place=lambda: False)
_TRACER = SimpleNamespace(_expected_place=_PLACE)


@contextmanager
def forced_scaler() -> Iterator[None]:
    """Context in which a `GradScaler` works on a CPU; the tracer and `amp_dtype` are restored at its end."""
    before = amp_global_state().amp_dtype
    amp_global_state().amp_dtype = "float16"
    try:
        with mock.patch.object(grad_scaler, "_dygraph_tracer", return_value=_TRACER):
            yield
    finally:
        amp_global_state().amp_dtype = before


def refuse_what_differs(scale: float, gradients: Iterable[Array]) -> None:
    """Refuses an update that the kernels of a CPU and a GPU decide differently.

    Raises:
        Unsupported: the scaled gradients are finite, and unscaling makes one of them non-finite.
    """
    scaled = list(gradients)
    with np.errstate(all="ignore"):
        inverse = np.float32(1.0) / np.float32(scale)
        finite = all(np.isfinite(gradient).all() for gradient in scaled)
        if finite and not all(np.isfinite(gradient * inverse).all() for gradient in scaled):
            raise Unsupported(Capability.DYNAMIC_SCALING, ONLY_A_GPU, skips_nan_after_unscaling)


def skips_nan_after_unscaling() -> bool:
    """Whether an update is skipped whose gradient becomes NaN when it is unscaled."""
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.SGD(0.5, parameters=[weight])
    with forced_scaler():
        scaler = paddle.amp.GradScaler()
        scaler.set_init_loss_scaling(0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
    return bool(weight.item() == 1.0)
