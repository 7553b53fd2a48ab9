"""Momentum, Adam and AdamW raise in the middle of an update where parameters are float32 and float64."""

import sys

import paddle

seen = {}
for kind in ("SGD", "Momentum", "Adam", "AdamW"):
    weights = [paddle.create_parameter([1], dtype) for dtype in ("float32", "float64")]
    optimizer = getattr(paddle.optimizer, kind)(0.5, parameters=weights)
    (weights[0].astype("float64") + weights[1]).sum().backward()
    try:
        optimizer.step()
        seen[kind] = "updates"
    except ValueError:
        seen[kind] = "ValueError"
print("expected: each updates both, as SGD does")
print(f"seen: {seen}")
sys.exit(set(seen.values()) != {"updates"})
