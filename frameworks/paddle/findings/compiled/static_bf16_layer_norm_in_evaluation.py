"""In a static program layer norm with bfloat16 weights, behind a bfloat16 product, raises when nothing is trained."""

import sys

import numpy as np
import paddle

paddle.enable_static()
program, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(program, startup):
    inputs = paddle.static.data("inputs", [None, 3], "float32")
    paddle.set_default_dtype("bfloat16")
    network = paddle.nn.Sequential(paddle.nn.Linear(3, 8), paddle.nn.LayerNorm(8))
    paddle.set_default_dtype("float32")
    output = network(inputs.cast("bfloat16")).cast("float32")
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup)
try:
    (value,) = executor.run(program, feed={"inputs": np.ones((2, 3), np.float32)}, fetch_list=[output])
    seen = f"an output of shape {value.shape}"
except (ValueError, RuntimeError) as error:
    seen = next(line.strip() for line in str(error).splitlines() if "Error" in line)
print("expected: an output of shape (2, 8)")
print(f"seen: {seen}")
sys.exit(int(seen != "an output of shape (2, 8)"))
