"""Attempts with Lightning's Trainer, without this adapter's guards."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import callbacks
from lightning.pytorch.plugins.precision import MixedPrecision

from frameworks.contract import Attempt, Capability
from frameworks.torch.core.guards import Probe
from frameworks.torch.stacks.lightning.start import NAMES, attempts, is_at, scaled
from frameworks.torch.stacks.lightning.tiny import Tiny, fitted, mean


def _product(module: Tiny, factor: float) -> torch.Tensor:
    products = torch.full((2, 2), factor, dtype=module.dtype, device=module.device) @ module.weight
    module.readings.append(products.dtype)
    return products.sum() / 2.0


def _train(device: str, *factors: float, **given: Any) -> tuple[torch.Tensor, list[torch.dtype]]:
    module = Tiny(_product)
    fitted(device, module, *factors, **given)
    return module.weight, module.readings


def _unscaled_manually(times: int, device: str) -> bool:
    """Whether gradients can be unscaled by hand after the backward pass, and then stepped with."""
    module, plugin = Tiny(), scaled(MixedPrecision, device)

    def unscale() -> None:
        for _ in range(times):
            plugin.scaler.unscale_(module.optimizers().optimizer)

    module.on_after_backward = unscale
    fitted(device, module, 1.0, plugins=plugin)
    return is_at(module.weight, 0.5)


def _two_optimizers(device: str) -> bool:
    module = Tiny(configured=lambda own: [torch.optim.SGD([own.weight], 0.5) for _ in range(2)])
    fitted(device, module, 1.0)
    return is_at(module.weight, 0.0)


def _two_losses(device: str) -> bool:
    """Whether two losses that a step returns each have a backward pass."""
    module = Tiny(lambda module, factor: [mean(module, factor), mean(module, factor)])
    fitted(device, module, 1.0)
    return is_at(module.weight, 0.0)


def ends_a_window_early(device: str = "cpu") -> bool:
    """Whether anything that a step returns or sets ends a window before its last micro-batch."""

    def step(module: Tiny, factor: float) -> torch.Tensor:
        module.trainer.should_stop = True
        return mean(module, factor)

    module = Tiny(step)
    fitted(device, module, 1.0, 1.0, 1.0, accumulate_grad_batches=2)
    return not is_at(module.weight, 1.0)


def clips_fused(device: str) -> bool:
    """Whether the scaled gradients of a fused optimizer are clipped."""
    module = Tiny(configured=lambda own: torch.optim.SGD([own.weight], 0.5, fused=True))
    fitted(device, module, 8.0, gradient_clip_val=1.0, plugins=scaled(MixedPrecision, device))
    return float((1.0 - module.weight.detach()).norm()) < 0.501


def _average(device: str) -> bool:
    module = Tiny()
    fitted(device, module, 1.0, 2.0, callbacks=[callbacks.EMAWeightAveraging(decay=0.5)])
    return is_at(module.weight, 0.0)  # (0.5 - 0.5) / 2, of the weights 0.5 and -0.5


_OWN: dict[Capability, Probe] = {
    Capability.EXPLICIT_UNSCALE: partial(_unscaled_manually, 1),
    Capability.SECOND_UNSCALE: partial(_unscaled_manually, 2),
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.AVERAGE: _average,
}


def library_attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability."""
    return attempts(device, _train, MixedPrecision, _OWN)


def keeps_float64_head(label: str, device: str) -> bool:
    """Whether a model's float64 weights stay float64 at a level."""
    module = Tiny()
    module.head = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    fitted(device, module, 1.0, precision=NAMES[label])
    return bool(module.head.dtype == torch.float64)


def trainer_scales(precision: Any, device: str) -> bool:
    """Whether the Trainer's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    plugin = fitted(device, Tiny(), 1.0, precision=precision).precision_plugin
    return getattr(plugin, "scaler", None) is not None
