"""In the static graph under auto_cast linear gives bfloat16 without a bias, and float32 with a float32 bias."""

import sys

import paddle

paddle.enable_static()
with paddle.static.program_guard(paddle.static.Program()):
    x = paddle.static.data("x", [2, 3], "float32")
    weight, bias = (paddle.create_parameter(shape, "float32") for shape in ([3, 4], [4]))
    with paddle.amp.auto_cast(dtype="bfloat16"):
        seen = [str(paddle.nn.functional.linear(x, weight, term).dtype) for term in (None, bias)]

print("expected: one format, with a bias and without")
print(f"seen: {seen[0]} without a bias, {seen[1]} with one")
sys.exit(seen[0] != seen[1])
