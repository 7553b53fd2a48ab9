"""The gradient of sqrt at infinity differs between places of one array."""

import sys

import paddle

x = paddle.full([19], float("inf"))
x.stop_gradient = False
paddle.sqrt(x).sum().backward()
kinds = {"nan" if value != value else str(value) for value in x.grad.tolist()}
print("expected: one value")
print(f"seen: {' and '.join(sorted(kinds))}")
sys.exit(len(kinds) > 1)
