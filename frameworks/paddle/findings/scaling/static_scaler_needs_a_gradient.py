"""A static program with GradScaler cannot be built where the loss reaches no parameter."""

import sys

import paddle

paddle.enable_static()
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = paddle.static.data("x", [1], "float32").sum()
layer, optimizer = paddle.nn.Linear(1, 1), paddle.optimizer.SGD(1.0)
_, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level="O1", dtype="float16")
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
try:
    scaler.minimize(optimizer, scaler.scale(loss))
    seen = "built"
except ValueError as error:
    seen = f"ValueError: {' '.join(str(error).split())[:100]}"
print("expected: built, as without a scaler; the update does nothing")
print(f"seen: {seen}")
sys.exit(seen != "built")
