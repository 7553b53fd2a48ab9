"""In a static program softplus of bfloat16 values is log 2 on a CPU, whatever the values are."""

import sys

import numpy as np
import paddle

paddle.enable_static()
values = np.array([-4.0, -1.0, 0.0, 1.0, 4.0], np.float32)
program = paddle.static.Program()
with paddle.static.program_guard(program):
    inputs = paddle.static.data("inputs", [5], "float32")
    output = paddle.nn.functional.softplus(inputs.cast("bfloat16")).cast("float32")
(seen,) = paddle.static.Executor(paddle.CPUPlace()).run(program, feed={"inputs": values}, fetch_list=[output])
expected = np.log1p(np.exp(values))
print(f"expected: {expected.round(3).tolist()} of {values.tolist()}")
print(f"seen: {seen.round(3).tolist()}")
sys.exit(int(not np.allclose(seen, expected, rtol=0.02)))
