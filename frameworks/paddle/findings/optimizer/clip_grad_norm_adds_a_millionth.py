"""clip_grad_norm_ adds 1e-6 to the norm that it divides by, where ClipGradByGlobalNorm does not."""

import sys

import paddle

seen = []
for clip in (None, paddle.nn.ClipGradByGlobalNorm(0.5)):
    weight = paddle.create_parameter([1], "float64", default_initializer=paddle.nn.initializer.Constant(0.0))
    optimizer = paddle.optimizer.SGD(1.0, parameters=[weight], grad_clip=clip)
    weight.sum().backward()
    if clip is None:
        paddle.nn.utils.clip_grad_norm_([weight], 0.5)
    optimizer.step()
    seen.append(-weight.item())

print("expected: a gradient of 1 clipped to 0.5 by either")
print(f"seen: {seen[0]} by clip_grad_norm_, {seen[1]} by ClipGradByGlobalNorm")
sys.exit(seen != [0.5, 0.5])
