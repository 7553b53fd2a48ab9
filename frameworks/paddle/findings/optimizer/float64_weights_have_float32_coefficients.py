"""Momentum of a float64 weight decays by the float32 nearest to 0.9, and AdamW's weight decay is a float32 too."""

import sys

import paddle

seen = []
for name, options, gradients in (("Momentum", {"momentum": 0.9}, (1.0, 0.0)), ("AdamW", {"weight_decay": 0.1}, (0.0,))):
    weight = paddle.create_parameter([1], "float64", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = getattr(paddle.optimizer, name)(1.0, parameters=[weight], **options)
    for gradient in gradients:
        (weight * gradient).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    seen.append(weight.item())

print("expected: 1 - 1 - 0.9 = -0.9 by Momentum, 1 - 0.1 = 0.9 by AdamW, to 15 digits")
print(f"seen: {seen[0]!r} by Momentum, {seen[1]!r} by AdamW")
sys.exit(max(abs(seen[0] + 0.9), abs(seen[1] - 0.9)) > 1e-15)
