"""Attempts with Lightning Fabric, without this adapter's guards."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision

from frameworks.contract import Attempt, Capability
from frameworks.torch.core.guards import Probe, all_guarded
from frameworks.torch.stacks.lightning.start import quiet, without_warnings


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

    def step(self) -> None:
        """A step, after which gradients are emptied."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def is_at(self, value: float) -> bool:
        """Whether both weights have this value."""
        return bool((self.weight.weight == value).all())


def scaled(device: str, scale: float = 8.0, **given: Any) -> MixedPrecision:
    """float16 autocast under a scaler of this scale."""
    return MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=scale, **given))


def _attempt(loop: Loop, *factors: float) -> None:
    for factor in factors:
        loop.backward(factor)
        loop.step()


def _scale(plugin: MixedPrecision) -> float:
    assert plugin.scaler is not None
    return float(plugin.scaler.get_scale())


def _mixed(dtype: torch.dtype, device: str) -> bool:
    given: dict[str, Any] = {"plugins": scaled(device)} if dtype == torch.float16 else {"precision": "bf16-mixed"}
    loop = Loop(device, **given)
    loop.backward(1.0)
    return loop.weight.formats == [dtype] and loop.weight.weight.dtype == torch.float32


def _true(dtype: torch.dtype, device: str) -> bool:
    loop = Loop(device, precision="16-true" if dtype == torch.float16 else "bf16-true")
    _attempt(loop, 1.0)
    return loop.is_at(0.5) and loop.weight.weight.dtype == dtype


def _dynamic_scaling(device: str) -> bool:
    plugin = scaled(device)
    loop = Loop(device, plugins=plugin)
    _attempt(loop, float("inf"), 1.0)
    return loop.is_at(0.5) and _scale(plugin) == 4.0


def _static_scaling(device: str) -> bool:
    """Whether an overflow leaves a scale that is never to grow as it was."""
    plugin = scaled(device, growth_interval=2**31 - 1)
    _attempt(Loop(device, plugins=plugin), float("inf"))
    return _scale(plugin) == 8.0


PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_mixed, torch.float16),
    Capability.O1_BFLOAT16: partial(_mixed, torch.bfloat16),
    Capability.O3_FLOAT16: partial(_true, torch.float16),
    Capability.O3_BFLOAT16: partial(_true, torch.bfloat16),
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.STATIC_SCALING: _static_scaling,
}


def fabric_attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability."""
    return all_guarded(PROBES, device, partial(torch.random.fork_rng, []), without_warnings)


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
    fabric, weight = Fabric(accelerator=device, devices=1, plugins=scaled(device)), Weight()
    module, optimizer = fabric.setup(weight, torch.optim.SGD(weight.parameters(), 0.5, fused=True))
    fabric.backward(module(torch.eye(2, device=fabric.device) * 8.0).sum())
    fabric.clip_gradients(module, optimizer, max_norm=1.0)
    optimizer.step()
    return bool(((weight.weight > 0.5) & (weight.weight < 1.0)).all())


def keeps_float64(label: str, device: str) -> bool:
    """Whether float64 weights give float64 outputs at a level."""
    given: dict[str, Any] = {
        "O1-float16": {"plugins": scaled(device)},
        "O1-bfloat16": {"precision": "bf16-mixed"},
        "O3-float16": {"precision": "16-true"},
        "O3-bfloat16": {"precision": "bf16-true"},
    }[label]
    loop = Loop(device, torch.float64, **given)
    return bool(loop.module(torch.eye(2, device=device)).dtype == torch.float64)


def scales(precision: str, device: str) -> bool:
    """Whether Fabric's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    return getattr(Loop(device, precision=precision).fabric.strategy.precision, "scaler", None) is not None
