"""recompute_sequential passes a segment's output on as *args, its rows: a second segment of the Sequential raises."""

import sys

import paddle
from paddle.incubate.distributed.fleet import recompute_sequential

model = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2))
x = paddle.ones([3, 2])
x.stop_gradient = False
print("expected: the shape of the output is [3, 2]")
try:
    print(f"seen: the shape is {recompute_sequential({'segments': 2}, model, x).shape}")
except TypeError as error:
    print(f"seen: TypeError: {error}")
    sys.exit(1)
