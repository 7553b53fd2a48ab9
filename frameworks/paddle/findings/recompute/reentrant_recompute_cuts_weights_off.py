"""recompute() in its default variant gives the weights of a block no gradient where none of its inputs asks for one."""

import sys

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

paddle.seed(0)
layer, ids = paddle.nn.Embedding(4, 3), paddle.to_tensor([0, 2])
exact = np.zeros((4, 3), np.float64)
exact[[0, 2]] = 1.0
out = recompute(layer, ids)
if not out.stop_gradient:
    out.sum().backward()
seen = None if layer.weight.grad is None else layer.weight.grad.numpy()
print(f"expected: the embedding's gradient is {exact.tolist()}")
print(f"seen: {seen if seen is None else seen.tolist()}, the output has stop_gradient={out.stop_gradient}")
sys.exit(seen is None or not np.array_equal(seen, exact))
