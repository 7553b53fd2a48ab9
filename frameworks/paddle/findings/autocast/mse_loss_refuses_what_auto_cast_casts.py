"""In the static graph mse_loss refuses a low-precision output, which auto_cast would cast."""

import sys

import paddle

paddle.enable_static()
x, y = (paddle.full([4, 2], value) for value in (1.0, 301.0))
seen = []
with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
    low = x.astype("bfloat16")
    for loss in (lambda a, b: paddle.nn.functional.square_error_cost(a, b).mean(), paddle.nn.functional.mse_loss):
        try:
            (value,) = paddle.static.Executor().run(fetch_list=[loss(low, y)])
            seen.append(float(value))
        except TypeError as error:
            seen.append(f"TypeError: {error}")

print("expected: 90000.0 from both calls, whose squares auto_cast computes in float32")
print(f"seen: {seen[0]} from square_error_cost, {seen[1]} from mse_loss")
sys.exit(seen != [90000.0, 90000.0])
