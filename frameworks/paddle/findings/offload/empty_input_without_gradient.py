"""The backward pass of a linear layer raises for an input of no rows, unless the input needs a gradient."""

import sys

import paddle

seen = {}
for needs_gradient in (True, False):
    case = f"input needs a gradient: {needs_gradient}"
    layer = paddle.nn.Linear(3, 2)
    x = paddle.zeros([0, 3])
    x.stop_gradient = not needs_gradient
    try:
        layer(x).sum().backward()
        seen[case] = layer.weight.grad.abs().sum().item()
    except ValueError:
        seen[case] = "ValueError"
print("expected: gradients of zero in both")
print(f"seen: {seen}")
sys.exit(0 if set(seen.values()) == {0.0} else 1)
