"""GradScaler doubles its scale past the largest float32, and training stops for good."""

import contextlib
import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
w = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
scaler = paddle.amp.GradScaler(init_loss_scaling=2.0**100, incr_every_n_steps=1)
for step in range(200):
    with paddle.amp.auto_cast(enable=False, dtype="float16"):
        loss = (w * (0.0 if step < 30 else 1.0)).sum()
    scaler.scale(loss).backward()
    with contextlib.redirect_stdout(None):  # the scaler prints a line at each backoff
        scaler.step(optimizer)
        scaler.update()
    optimizer.clear_grad()
scale = float(scaler.state_dict()["scale"][0])
print("expected: after 30 growths from 2^100 a finite scale, and 170 steps by a gradient of 1 that move the weight")
print(f"seen: a scale of {scale}, a weight that moved by {-w.item()}")
sys.exit(w.item() == 0.0)
