"""The backward pass of matmul raises for an input of no rows that needs no gradient, where the weight's is zero."""

import sys

import paddle

seen = {}
for needs_gradient in (True, False):
    inputs, weight = paddle.zeros([0, 2]), paddle.create_parameter([2, 3], "float32")
    inputs.stop_gradient = not needs_gradient
    try:
        paddle.matmul(inputs, weight).sum().backward()
        seen[needs_gradient] = str(weight.grad.abs().sum().item())
    except Exception as error:
        seen[needs_gradient] = str(error).splitlines()[0]
print("expected: 0.0, whether the input wants a gradient itself or not")
print(f"seen: {seen[True]} where it does, {seen[False]} where it does not")
sys.exit(0 if set(seen.values()) == {"0.0"} else 1)
