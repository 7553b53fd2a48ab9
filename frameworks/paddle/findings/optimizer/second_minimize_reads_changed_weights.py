"""In a static program a second `minimize` of one loss goes backward through the weights that the first one changed."""

import sys

import numpy as np
import paddle

paddle.enable_static()
x = paddle.static.data("x", [1, 1], "float32")
two = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(2.0))
first, second = (paddle.nn.Linear(1, 1, weight_attr=two, bias_attr=False) for _ in range(2))
loss = second(first(x)).sum()
for layer in (second, first):
    paddle.optimizer.SGD(1.0, parameters=layer.parameters()).minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
executor.run(feed={"x": np.ones((1, 1), np.float32)}, fetch_list=[loss])
scope = paddle.static.global_scope()
moved = [float(np.array(scope.find_var(layer.weight.name).get_tensor()).item()) for layer in (first, second)]
print("expected: [0.0, 0.0], from weights of 2 whose gradients are 2")
print(f"seen: {moved}")
sys.exit(moved != [0.0, 0.0])
