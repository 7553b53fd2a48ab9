"""Under to_static(full_graph=True) slogdet's tensor has the shape of its input, and cannot be unpacked into two."""

import sys

import paddle


def logarithms(x):
    _, logarithm = paddle.linalg.slogdet(x)
    return logarithm


x = paddle.stack([paddle.eye(2)] * 3)
expected = logarithms(x).tolist()
try:
    seen = paddle.jit.to_static(logarithms, full_graph=True)(x).tolist()
except ValueError as error:
    seen = f"ValueError: {str(error).strip().splitlines()[-1].strip()}"
print(f"expected: {expected}")
print(f"seen: {seen}")
sys.exit(0 if seen == expected else 1)
