"""Under two optimizers an overflow of the first one does not lower GradScaler's scale."""

import contextlib
import sys
from unittest import mock

import paddle
from paddle.amp import grad_scaler

if not paddle.device.is_compiled_with_cuda():
    grad_scaler._dygraph_tracer = mock.Mock()  # on a CPU the scaler asks for the place and turns itself off
scales = []
for factors in ((float("inf"), 1.0), (1.0, float("inf"))):
    weights = [paddle.create_parameter([1], "float32") for _ in factors]
    optimizers = [paddle.optimizer.SGD(1.0, parameters=[w]) for w in weights]
    with paddle.amp.auto_cast(enable=False, dtype="float16"):
        loss = sum((w * factor).sum() for w, factor in zip(weights, factors, strict=True))
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    with contextlib.redirect_stdout(None):  # the scaler prints a line at each backoff
        scaler.update()
    scales.append(float(scaler.state_dict()["scale"][0]))
print("expected: 512.0 after an overflow of either optimizer")
print(f"seen: {scales[0]} after one of the first, {scales[1]} after one of the second")
sys.exit(scales != [512.0, 512.0])
