"""An optimizer cannot go on from a state in which a weight that had no gradient yet has no moment."""

import sys

import paddle

zero = paddle.nn.initializer.Constant(0.0)
first, second = (paddle.create_parameter([1], "float32", default_initializer=zero) for _ in range(2))
optimizer = paddle.optimizer.Momentum(0.5, parameters=[first, second])
first.sum().backward()
optimizer.step()
optimizer.clear_grad(set_to_zero=False)
resumed = paddle.optimizer.Momentum(0.5, parameters=[first, second])
resumed.set_state_dict(optimizer.state_dict())
(first + second).sum().backward()
try:
    resumed.step()
    seen = "an update"
except AssertionError as error:
    seen = str(error)
print("expected: an update of both weights, as without the save and the load")
print(f"seen: {seen}")
sys.exit(seen != "an update")
