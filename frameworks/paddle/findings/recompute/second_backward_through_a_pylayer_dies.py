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
child = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True)
if child.returncode > 0:  # an exception, which is no death by a signal
    sys.exit(child.stderr)
print("expected: two backward passes, exit status 0")
print(f"seen: two backward passes, exit status {child.returncode}")
sys.exit(child.returncode < 0)
