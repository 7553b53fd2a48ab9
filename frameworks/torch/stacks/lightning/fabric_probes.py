"""Attempts with Lightning Fabric, without this adapter's guards."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

from frameworks.contract import Attempt, Capability
from frameworks.torch.stacks.lightning.start import NAMES, attempts, quiet, scaled


class Weight(torch.nn.Module):
    """Two weights of 1.0; the output is a product with a matrix of ones, and its format is recorded."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))
        self.formats: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.to(self.weight.dtype) @ self.weight
        self.formats.append(y.dtype)
        return y


class Loop:
    """The loop of Fabric's documentation, over a factor of the weights' sum, under SGD of rate 0.5."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32, **given: Any) -> None:
        quiet()
        self.fabric = Fabric(accelerator=device, devices=1, **given)
        self.weight = Weight(dtype)
        self.module, self.optimizer = self.fabric.setup(self.weight, torch.optim.SGD(self.weight.parameters(), 0.5))

    def backward(self, factor: float) -> None:
        """Forward and backward of a micro-batch."""
        inputs = torch.eye(2, device=self.fabric.device) * factor
        self.fabric.backward(self.module(inputs).sum())


def _train(device: str, *factors: float, **given: Any) -> tuple[torch.Tensor, list[torch.dtype]]:
    loop = Loop(device, **given)
    for factor in factors:
        loop.backward(factor)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    return loop.weight.weight, loop.weight.formats


def fabric_attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability."""
    return attempts(device, _train, MixedPrecision, {})


def clips_two_optimizers(device: str) -> bool:
    """Whether clipping for each of two optimizers leaves a norm within the limit over both."""
    fabric, model = Fabric(accelerator=device, devices=1), torch.nn.Linear(1, 1)
    made = [torch.optim.SGD([parameter], 0.5) for parameter in model.parameters()]
    module, *optimizers = fabric.setup(model, *made)
    fabric.backward(module(torch.full((1, 1), 8.0, device=fabric.device)).sum() * 8.0)
    for optimizer in optimizers:
        fabric.clip_gradients(module, optimizer, max_norm=1.0)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.cat([gradient.flatten() for gradient in gradients]).norm()) < 1.001


def clips_fused(device: str) -> bool:
    """Whether the scaled gradients of a fused optimizer are clipped."""
    fabric, weight = Fabric(accelerator=device, devices=1, plugins=scaled(MixedPrecision, device)), Weight()
    module, optimizer = fabric.setup(weight, torch.optim.SGD(weight.parameters(), 0.5, fused=True))
    fabric.backward(module(torch.eye(2, device=fabric.device) * 8.0).sum())
    fabric.clip_gradients(module, optimizer, max_norm=1.0)
    optimizer.step()
    return bool(((weight.weight > 0.5) & (weight.weight < 1.0)).all())


def keeps_float64(label: str, device: str) -> bool:
    """Whether float64 weights give float64 outputs at a level."""
    low = label == "O1-float16"
    given = {"plugins": scaled(MixedPrecision, device)} if low else {"precision": NAMES[label]}
    loop = Loop(device, torch.float64, **given)
    return bool(loop.module(torch.eye(2, device=device)).dtype == torch.float64)


def scales(precision: str, device: str) -> bool:
    """Whether Fabric's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    return getattr(Loop(device, precision=precision).fabric.strategy.precision, "scaler", None) is not None
