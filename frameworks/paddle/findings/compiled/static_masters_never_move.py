"""On a CPU a static O2 program makes float32 master weights and never updates them: small updates are lost."""

import sys

import numpy as np
import paddle

paddle.enable_static()
x = paddle.static.data("x", [1, 1], "float32")
x.stop_gradient = False
one = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(1.0))
layer, optimizer = paddle.nn.Linear(1, 1, weight_attr=one, bias_attr=False), paddle.optimizer.SGD(2.0**-13)
layer, optimizer = paddle.amp.decorate(models=layer, optimizers=optimizer, level="O2", dtype="bfloat16")
with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
    loss = layer(x).astype("float32").sum()
optimizer.minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
for _ in range(1000):
    executor.run(feed={"x": np.ones((1, 1), np.float32)}, fetch_list=[loss])
scope = paddle.static.global_scope()
(master,) = [name for name in scope.local_var_names() if "master" in name]
moved = 1.0 - float(np.array(scope.find_var(master).get_tensor())[0, 0])
print(f"expected: 1,000 steps of 2^-13 move the master from 1 by {1000 * 2.0**-13}")
print(f"seen: {moved}")
sys.exit(moved != 1000 * 2.0**-13)
