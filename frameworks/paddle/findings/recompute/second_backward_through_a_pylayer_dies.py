"""A second backward through a PyLayer, which reentrant recompute is, dies, though the first one retains the graph."""

import subprocess
import sys

PROGRAM = """
import paddle
from paddle.distributed.fleet.utils import recompute

layer, x = paddle.nn.Linear(2, 2), paddle.ones([2, 2])
x.stop_gradient = False
output = recompute(layer, x)
output.sum().backward(retain_graph=True)
output.square().sum().backward()
"""
status = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True).returncode
print("expected: two backward passes, exit status 0")
print(f"seen: exit status {status}")
sys.exit(status != 0)
