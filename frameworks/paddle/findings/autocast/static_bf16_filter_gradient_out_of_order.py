"""In a static program on a CPU the filter gradient of a bfloat16 convolution of NHWC images comes in another order."""

import sys

import numpy as np
import paddle

paddle.enable_static()
rng = np.random.default_rng(0)
image = rng.integers(-2, 3, (1, 4, 4, 3)).astype(np.float64)
x = paddle.static.data("x", [1, 4, 4, 3], "float32")
x.stop_gradient = False
convolution = paddle.nn.Conv2D(3, 2, 3, data_format="NHWC", bias_attr=False)
with paddle.amp.auto_cast(dtype="bfloat16"):
    loss = convolution(x).astype("float32").sum()
((_, gradient),) = paddle.static.append_backward(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
(seen,) = executor.run(feed={"x": image.astype(np.float32)}, fetch_list=[gradient])
windows = np.lib.stride_tricks.sliding_window_view(image[0], (3, 3), axis=(0, 1))
one = windows.sum((0, 1))  # (in, height, width), the gradient of either filter of the sum of the outputs
exact = np.stack([one, one])
print(f"expected: filter 0, channel 0: {exact[0, 0].tolist()}")
moved = np.array_equal(seen.ravel(), exact.transpose(0, 2, 3, 1).ravel())
print(f"seen: {seen[0, 0].tolist()}, the whole gradient in the order (out, height, width, in): {moved}")
sys.exit(not np.array_equal(seen, exact))
