"""Optimizer.minimize raises for an optimizer with parameter groups, which step takes."""

import sys

import paddle

layer = paddle.nn.Linear(1, 1)
groups = [{"params": [layer.weight]}, {"params": [layer.bias], "learning_rate": 0.5}]
optimizer = paddle.optimizer.SGD(0.5, parameters=groups)
loss = layer(paddle.ones([1, 1])).sum()
loss.backward()
print("expected: minimize makes the update that step makes")
try:
    optimizer.minimize(loss)
except Exception as error:
    print(f"seen: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
    sys.exit(1)
print(f"seen: the bias is {layer.bias.item()}")
