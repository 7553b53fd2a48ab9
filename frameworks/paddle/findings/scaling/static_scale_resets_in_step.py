"""With a fixed scale GradScaler.step forgets all calls of unscale_, so a second optimizer is unscaled twice."""

import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
zero = paddle.nn.initializer.Constant(0.0)
weights = [paddle.create_parameter([1], "float32", default_initializer=zero) for _ in range(2)]
optimizers = [paddle.optimizer.SGD(1.0, parameters=[weight]) for weight in weights]
scaler = paddle.amp.GradScaler(init_loss_scaling=4.0, use_dynamic_loss_scaling=False)
scaler.scale(weights[0].sum() + weights[1].sum()).backward()
for optimizer in optimizers:
    scaler.unscale_(optimizer)
for optimizer in optimizers:
    scaler.step(optimizer)
moved = [weight.item() for weight in weights]
print("expected: [-1.0, -1.0], by gradients of 1")
print(f"seen: {moved}")
sys.exit(moved != [-1.0, -1.0])
