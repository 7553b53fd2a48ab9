"""After clear_grad() a parameter that the next loss does not reach has a gradient of zeros, and momentum moves it."""

import sys

import paddle

zero = paddle.nn.initializer.Constant(0.0)
a, b = (paddle.create_parameter([1], "float32", default_initializer=zero) for _ in range(2))
optimizer = paddle.optimizer.Momentum(1.0, momentum=0.5, parameters=[a, b])
for loss in (lambda: (a + b).sum(), lambda: a.sum()):
    loss().backward()
    optimizer.step()
    optimizer.clear_grad()
print("expected: -1.0 for the parameter that the second loss does not reach")
print(f"seen: {b.item()}")
sys.exit(b.item() != -1.0)
