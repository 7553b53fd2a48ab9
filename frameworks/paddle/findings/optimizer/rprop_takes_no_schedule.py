"""Rprop raises for a learning-rate schedule, which its documentation allows."""

import sys

import paddle

weight = paddle.create_parameter([1], "float32")
seen = "an optimizer"
try:
    paddle.optimizer.Rprop(paddle.optimizer.lr.ExponentialDecay(0.0625, 0.5), parameters=[weight])
except TypeError as error:
    seen = f"TypeError: {error}"
print("expected: an optimizer; its docstring has learning_rate (float|Tensor|LRScheduler)")
print(f"seen: {seen}")
sys.exit(0 if seen == "an optimizer" else 1)
