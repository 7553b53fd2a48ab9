"""In a static program on a CPU a bfloat16 bias has the gradient of another axis where batch and width are equal."""

import sys

import numpy as np
import paddle

SIZE = 4
paddle.enable_static()
x = paddle.static.data("x", [None, SIZE], "float32")
x.stop_gradient = False
bias = paddle.create_parameter([SIZE], "float32").astype("bfloat16")
weight = paddle.static.data("weight", [None, SIZE], "float32")
loss = ((x.astype("bfloat16") + bias).astype("float32") * weight).sum()
(gradient,) = paddle.static.gradients([loss], [bias])
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
matrix = np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
(seen,) = executor.run(feed={"x": matrix, "weight": matrix}, fetch_list=[gradient.astype("float32")])
exact = matrix.sum(0)
print(f"expected: the weights summed over the batch: {exact.tolist()}")
print(f"seen: {seen.tolist()}, the weights summed over the width: {np.array_equal(seen, matrix.sum(1))}")
sys.exit(not np.array_equal(seen, exact))
