"""ReLU of NaN is 0 on a CPU, so that an overflow before it does not reach the loss."""

import sys

import numpy as np
import paddle

output = paddle.nn.functional.relu(paddle.to_tensor([float("nan")])).numpy().tolist()
print("expected: [nan]")
print(f"seen: {output}")
sys.exit(not np.isnan(output[0]))
