"""GradScaler.update counts an overflow that unscale_ found, but no step followed, as a finite update."""

import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
w = paddle.create_parameter([1], "float32")
optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = (w * float("inf")).sum()
scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0, incr_every_n_steps=1)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)  # finds the infinity; the step is left out
scaler.update()
scale = float(scaler.state_dict()["scale"][0])
print("expected: a scale of at most 1024, which grows by steps with finite gradients alone")
print(f"seen: {scale}")
sys.exit(scale > 1024.0)
