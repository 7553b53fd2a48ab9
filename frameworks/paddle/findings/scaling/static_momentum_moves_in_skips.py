"""In a static program Momentum moves the weights in an update that GradScaler skips."""

import sys

import numpy as np
import paddle

paddle.enable_static()
x = paddle.static.data("x", [1], "float32")
zero = paddle.nn.initializer.Constant(0.0)
w = paddle.create_parameter([1], "float32", default_initializer=zero)
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = (w * x).sum()
layer, optimizer = paddle.nn.Linear(1, 1), paddle.optimizer.Momentum(1.0, momentum=0.5)
_, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level="O1", dtype="float16")
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
scaler.minimize(optimizer, scaler.scale(loss))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
for value in (1.0, np.inf):
    executor.run(feed={"x": np.array([value], np.float32)}, fetch_list=[loss])
seen = float(np.array(paddle.static.global_scope().find_var(w.name).get_tensor())[0])
print("expected: -1.0 after a step by 1 and a skipped one")
print(f"seen: {seen}")
sys.exit(seen != -1.0)
