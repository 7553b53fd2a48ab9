"""Each optimizer's step under Fabric moves the loss scale, so a second one divides its gradients by another scale."""

import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
fabric = Fabric(accelerator="cpu", plugins=MixedPrecision("16-mixed", "cpu", scaler))
module = torch.nn.Linear(1, 1)
torch.nn.init.zeros_(module.bias)
optimizers = [torch.optim.SGD([parameter], 1.0) for parameter in (module.weight, module.bias)]
model, *steppers = fabric.setup(module, *optimizers)
fabric.backward(model(torch.ones(1, 1)).sum())
for stepper in steppers:
    stepper.step()
print(f"expected: bias -1.0, by a gradient of 1.0\nseen: {module.bias.item()}")
sys.exit(0 if module.bias.item() == -1.0 else 1)
