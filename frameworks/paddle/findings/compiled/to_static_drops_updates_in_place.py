"""to_static(full_graph=True) drops updates in place: the former values are returned."""

import sys

import paddle


def update_in_place(x):
    y = x * 1.0
    y.add_(paddle.ones_like(y))
    return y


x = paddle.to_tensor([1.0, 2.0])
expected, seen = update_in_place(x).tolist(), paddle.jit.to_static(update_in_place, full_graph=True)(x).tolist()
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
