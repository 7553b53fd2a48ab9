"""Fabric.save leaves out the loss scale: a loaded run begins with the initial one."""

import sys
import tempfile

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision


def run():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    fabric = Fabric(accelerator="cpu", plugins=MixedPrecision("16-mixed", "cpu", scaler))
    module = torch.nn.Linear(1, 1)
    return fabric, scaler, *fabric.setup(module, torch.optim.SGD(module.parameters(), 0.1))


fabric, saved, model, optimizer = run()
fabric.backward(model(torch.full((1, 1), float("inf"))).sum())  # an overflow, which halves the scale
optimizer.step()
other, loaded, other_model, other_optimizer = run()
with tempfile.TemporaryDirectory() as folder:
    fabric.save(f"{folder}/run.ckpt", {"model": model, "optimizer": optimizer})
    other.load(f"{folder}/run.ckpt", {"model": other_model, "optimizer": other_optimizer})
print(f"expected: scale {saved.get_scale()} after the load\nseen: {loaded.get_scale()}")
sys.exit(0 if loaded.get_scale() == saved.get_scale() else 1)
