"""The gradient of a weight by an input without rows, for which the sum over no rows is zero."""

import sys

import paddle

seen = {}
for wanted in (True, False):
    inputs, weight = paddle.zeros([0, 2]), paddle.create_parameter([2, 3], "float32")
    inputs.stop_gradient = not wanted
    try:
        paddle.matmul(inputs, weight).sum().backward()
        seen[wanted] = str(weight.grad.abs().sum().item())
    except Exception as error:
        seen[wanted] = str(error).splitlines()[0]
print("expected: 0.0, whether the input wants a gradient itself or not")
print(f"seen: {seen[True]} where it does, {seen[False]} where it does not")
sys.exit(0 if set(seen.values()) == {"0.0"} else 1)
