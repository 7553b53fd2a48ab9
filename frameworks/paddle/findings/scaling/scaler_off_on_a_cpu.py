"""On a CPU GradScaler warns and turns itself off in dynamic mode, where static mode scales."""

import sys
import warnings

import paddle

warnings.simplefilter("ignore")
paddle.device.set_device("cpu")
w = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
with paddle.amp.auto_cast(dtype="float16"):
    loss = w.sum()
seen = paddle.amp.GradScaler(init_loss_scaling=1024.0).scale(loss).item()
print("expected: a loss of 1 scaled by 1024 is 1024.0")
print(f"seen: {seen}")
sys.exit(seen != 1024.0)
