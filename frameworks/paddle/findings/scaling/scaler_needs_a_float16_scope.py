"""GradScaler turns itself off for good where no float16 precision scope came before: a float32 run is not scaled."""

import sys
import warnings

import numpy as np
import paddle

warnings.simplefilter("ignore")
paddle.enable_static()
loss = paddle.static.data("x", [1, 2], "float32").sum()
scaled = paddle.amp.GradScaler(init_loss_scaling=8.0).scale(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
(seen,) = executor.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[scaled])
print("expected: a loss of 2 scaled by 8 is 16.0")
print(f"seen: {float(seen)}")
sys.exit(float(seen) != 16.0)
