"""GradScaler obeys the format of the last precision scope, also a closed one: after bfloat16 it turns itself off."""

import sys
import warnings

import numpy as np
import paddle

warnings.simplefilter("ignore")
paddle.enable_static()
loss = paddle.static.data("x", [1, 2], "float32").sum()
with paddle.amp.auto_cast(dtype="float16"):
    pass  # the loss would be computed here
scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
with paddle.amp.auto_cast(dtype="bfloat16"):
    pass  # an evaluation in another format
scaled = scaler.scale(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
(seen,) = executor.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[scaled])
print("expected: a loss of 2 scaled by 8 outside every scope is 16.0, and the scaler stays enabled")
print(f"seen: {float(seen)}, enabled: {scaler.is_enable()}")
sys.exit(float(seen) != 16.0)
