"""GradScaler neither unscales nor checks the gradients of float64 parameters."""

import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
w = paddle.create_parameter([1], "float64", default_initializer=paddle.nn.initializer.Constant(0.0))
optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = (w * 0.25).sum()
scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
print(f"expected: one step of SGD with rate 1 and gradient 0.25 ends at {0.0 - 0.25}")
print(f"seen: {w.item()}")
sys.exit(w.item() != -0.25)
