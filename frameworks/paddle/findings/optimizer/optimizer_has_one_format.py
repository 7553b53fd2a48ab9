"""Momentum, Adam and AdamW raise in the middle of an update of float32 and float64 parameters, which SGD makes."""

import sys

import paddle

seen = {}
for name in ("SGD", "Momentum", "Adam", "AdamW"):
    weights = [paddle.create_parameter([1], dtype) for dtype in ("float32", "float64")]
    optimizer = getattr(paddle.optimizer, name)(0.5, parameters=weights)
    (weights[0].astype("float64") + weights[1]).sum().backward()
    try:
        optimizer.step()
        seen[name] = "updates"
    except ValueError:
        seen[name] = "ValueError"
print("expected: each updates both, as SGD does")
print(f"seen: {seen}")
sys.exit(set(seen.values()) != {"updates"})
