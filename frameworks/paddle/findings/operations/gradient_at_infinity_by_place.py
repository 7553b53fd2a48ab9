"""On a CPU the gradient of sqrt at infinity is NaN in some elements of an array and 0 in others."""

import sys

import paddle

x = paddle.full([19], float("inf"))
x.stop_gradient = False
paddle.sqrt(x).sum().backward()
values = {"nan" if value != value else str(value) for value in x.grad.tolist()}
print("expected: one value")
print(f"seen: {' and '.join(sorted(values))}")
sys.exit(len(values) > 1)
