"""What becomes non-finite between GradScaler.unscale_ and step is applied: the scaled gradients are what is checked."""

import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
w = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = w.sum()
scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
w.grad = w.grad * float("inf")  # what a user does with gradients between the two calls
scaler.step(optimizer)
scaler.update()
print("expected: the update is skipped, and the weight stays 1.0")
print(f"seen: {w.item()}")
sys.exit(w.item() != 1.0)
