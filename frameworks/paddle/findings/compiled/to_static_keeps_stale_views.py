"""Under to_static a view keeps the values that its base had before an assignment."""

import sys

import paddle


def read_view(x):
    base = x * 1.0
    view = base.reshape([-1])
    base[1, 1] = 9.0
    return view + 0.0


x = paddle.ones([2, 2])
expected, seen = read_view(x).tolist(), paddle.jit.to_static(read_view)(x).tolist()
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
