"""A skipped update multiplies Adamax's power of beta1, so that the next update is another one."""

import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if paddle.device.get_device() == "cpu":
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off

seen = {}
for gradients in ([1.0], [float("inf"), 1.0]):
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.Adamax(0.0625, parameters=[weight])
    with paddle.amp.auto_cast(dtype="float16"):
        scaler = paddle.amp.GradScaler(init_loss_scaling=1.0)
    for gradient in gradients:
        scaler.scale((weight * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
    seen["after a skip" if len(gradients) == 2 else "alone"] = round(weight.item(), 5)
print("expected: the same weight with and without a skipped update")
print(f"seen: {seen}")
sys.exit(0 if len(set(seen.values())) == 1 else 1)
