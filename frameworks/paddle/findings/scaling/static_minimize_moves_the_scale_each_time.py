"""In a static program with two optimizers under one GradScaler each minimize moves the scale."""

import sys

import numpy as np
import paddle

paddle.enable_static()
x = paddle.static.data("x", [1], "float32")
weights = [paddle.create_parameter([1], "float32") for _ in range(2)]
with paddle.amp.auto_cast(enable=False, dtype="float16"):
    loss = sum((w * x).sum() for w in weights)
layer, scaler = paddle.nn.Linear(1, 1), paddle.amp.GradScaler(init_loss_scaling=1024.0)
scaled = scaler.scale(loss)
for w in weights:
    optimizer = paddle.optimizer.SGD(1.0, parameters=[w])
    _, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level="O1", dtype="float16")
    scaler.minimize(optimizer, scaled)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
executor.run(feed={"x": np.array([np.inf], np.float32)}, fetch_list=[loss])
seen = float(np.array(paddle.static.global_scope().find_var(scaler._scale.name).get_tensor())[0])
print("expected: 512.0 after one update that overflows")
print(f"seen: {seen}")
sys.exit(seen != 512.0)
