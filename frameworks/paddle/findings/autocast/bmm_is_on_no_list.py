"""Under auto_cast bmm stays in float32: it is on no list of operations in low precision, where matmul is."""

import sys

import paddle

paddle.enable_static()
x, y = paddle.static.data("x", [2, 4, 8], "float32"), paddle.static.data("y", [2, 8, 4], "float32")
with paddle.amp.auto_cast(dtype="bfloat16"):
    formats = [str(product(x, y).dtype).rsplit(".", 1)[-1] for product in (paddle.matmul, paddle.bmm)]
print("expected: products in bfloat16")
print(f"seen: matmul in {formats[0]}, bmm in {formats[1]}")
sys.exit(formats != ["bfloat16", "bfloat16"])
