"""The backward of the plainest bfloat16 product in a static program on a CPU takes the process with it."""

import subprocess
import sys

PROGRAM = """
import numpy as np, paddle
paddle.enable_static()
x = paddle.static.data("x", [2, 2], "float32")
layer = paddle.nn.Linear(2, 1)
with paddle.amp.auto_cast(dtype="bfloat16"):
    loss = layer(x).astype("float32").mean()
paddle.optimizer.SGD(0.5).minimize(loss)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
executor.run(feed={"x": np.ones((2, 2), np.float32)}, fetch_list=[loss])
"""
status = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True).returncode
print("expected: an update, exit status 0")
print(f"seen: exit status {status}")
sys.exit(status != 0)
