"""Batch norm in training of one value a channel returns the value, where its formula gives the shift."""

import sys

import paddle

x = paddle.to_tensor([[3.0, -5.0]])
x.stop_gradient = False
output = paddle.nn.BatchNorm1D(2)(x)
(output * paddle.to_tensor([1.0, 2.0])).sum().backward()
measured = output.numpy().ravel().tolist(), x.grad.numpy().ravel().tolist()
print("expected: outputs [0.0, 0.0], the mean subtracted, and gradients [0.0, 0.0]")
print(f"seen: outputs {measured[0]} and gradients {measured[1]}")
sys.exit(measured != ([0.0, 0.0], [0.0, 0.0]))
