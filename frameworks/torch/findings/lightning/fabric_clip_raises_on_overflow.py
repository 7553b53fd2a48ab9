"""Fabric.clip_gradients raises on the first overflow, whose update the loss scaler would skip."""

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
fabric, module, seen = Fabric(accelerator="cpu", plugins=precision), torch.nn.Linear(1, 1), ""
model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))
fabric.backward(model(torch.full((1, 1), float("inf"))).sum())
try:
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
except RuntimeError as error:
    seen = str(error).partition(",")[0]
print(f"expected: the update is skipped\nseen: {seen or 'it is'}")
sys.exit(1 if seen else 0)
