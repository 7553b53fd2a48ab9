"""In a static program concat refuses a bfloat16 tensor beside a float64 one, which it takes beside a float32 one."""

import sys

import paddle

paddle.enable_static()
low, seen = paddle.static.data("x", [2, 2], "float32").astype("bfloat16"), {}
for wide in ("float32", "float64"):
    other = paddle.static.data(wide, [2, 2], wide)
    with paddle.amp.auto_cast(dtype="bfloat16"):
        try:
            seen[wide] = str(paddle.concat([other, low]).dtype).rsplit(".", 1)[-1]
        except Exception as error:
            seen[wide] = type(error).__name__
print("expected: the wider format, {'float32': 'float32', 'float64': 'float64'}")
print(f"seen: {seen}")
sys.exit(seen != {"float32": "float32", "float64": "float64"})
