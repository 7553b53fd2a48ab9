"""The backward pass of a while loop under to_static(full_graph=True) raises ValueError."""

import sys

import paddle


def grown(x):
    y = x * 1.0
    while y.sum() < 40.0:
        y = y * 1.5
    return y


def gradient(function):
    x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
    try:
        function(x).sum().backward()
    except ValueError:
        return "ValueError"
    return x.grad.tolist()


expected, seen = gradient(grown), gradient(paddle.jit.to_static(grown, full_graph=True))
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
