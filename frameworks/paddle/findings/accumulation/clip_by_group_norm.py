"""ClipGradByGlobalNorm takes one norm for each parameter group, not one of all parameters of the optimizer."""

import sys

import numpy as np
import paddle

zero, values = paddle.nn.initializer.Constant(0.0), []
for grouped in (False, True):
    a, b = (paddle.create_parameter([1], "float32", default_initializer=zero) for _ in range(2))
    parameters = [{"params": [a]}, {"params": [b]}] if grouped else [a, b]
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.SGD(1.0, parameters=parameters, grad_clip=clip)
    (3.0 * a + 4.0 * b).sum().backward()
    optimizer.step()
    values.append([-a.item(), -b.item()])
exact = (np.array([3.0, 4.0]) / np.hypot(3.0, 4.0)).tolist()
print(f"expected: gradients 3 and 4 clipped to a global norm of 1 are {exact}")
print(f"seen: {values[0]} in one group, {values[1]} in two")
sys.exit(not np.allclose(values, exact, rtol=1e-6))
