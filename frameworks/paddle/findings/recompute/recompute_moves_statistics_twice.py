"""The second forward of recompute() moves batch norm's running statistics once more."""

import sys

import numpy as np
import paddle
from paddle.distributed.fleet.utils import recompute

data = np.array([[1.0], [3.0]])
exact = 0.9 * 0.0 + 0.1 * data.mean()  # Paddle's momentum of 0.9: running = 0.9 running + 0.1 batch
seen = []
for reentrant in (True, False):
    norm, x = paddle.nn.BatchNorm1D(1), paddle.to_tensor(data.astype(np.float32), stop_gradient=False)
    (recompute(norm, x, use_reentrant=reentrant) ** 2).sum().backward()
    seen.append(round(norm._mean.item(), 6))
print(f"expected: the running mean after one step is {exact}")
print(f"seen: reentrant {seen[0]}, non-reentrant {seen[1]}")
sys.exit(seen != [exact, exact])
