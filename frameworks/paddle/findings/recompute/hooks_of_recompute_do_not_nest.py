"""Recomputation without reentrance cannot be nested, because Paddle takes one pair of saved-tensor hooks at a time."""

import sys

import paddle
from paddle.distributed.fleet.utils import recompute

layer, x = paddle.nn.Linear(2, 2), paddle.ones([2, 2])


def inner(value):
    return recompute(layer, value, use_reentrant=False)


try:
    recompute(inner, x, use_reentrant=False).sum().backward()
    error = None
except ValueError as refusal:
    error = " ".join(str(refusal).split())[:120]
print("expected: gradients, as with reentrant recompute")
print(f"seen: {error or 'gradients'}")
sys.exit(error is not None)
