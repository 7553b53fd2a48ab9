"""Attempts with Lightning's Trainer, without this adapter's guards."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import callbacks
from lightning.pytorch.plugins.precision import MixedPrecision

from frameworks.contract import Attempt, Capability
from frameworks.torch.core.guards import Probe, all_guarded
from frameworks.torch.stacks.lightning.start import NAMES, without_warnings
from frameworks.torch.stacks.lightning.tiny import Tiny, fitted, mean


def scaled(device: str, scale: float = 8.0, **given: Any) -> MixedPrecision:
    """float16 autocast under a scaler of this scale."""
    return MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=scale, **given))


def _scale(plugin: MixedPrecision) -> float:
    assert plugin.scaler is not None
    return float(plugin.scaler.get_scale())


def _product(module: Tiny, factor: float) -> torch.Tensor:
    square = torch.full((2, 2), factor, dtype=module.dtype, device=module.device) @ module.weight
    module.readings.append(square.dtype)
    return square.sum()


def _mixed(dtype: torch.dtype, device: str) -> bool:
    module = Tiny(_product)
    given = {"plugins": scaled(device)} if dtype == torch.float16 else {"precision": "bf16-mixed"}
    fitted(device, module, 1.0, **given)
    return module.readings == [dtype] and module.weight.dtype == torch.float32


def _true(dtype: torch.dtype, device: str) -> bool:
    module = Tiny(_product)
    trainer = fitted(device, module, 1.0, precision="16-true" if dtype == torch.float16 else "bf16-true")
    return module.weight.dtype == dtype and str(trainer.precision) in ("16-true", "bf16-true")


def _dynamic_scaling(device: str) -> bool:
    module, plugin = Tiny(), scaled(device)
    fitted(device, module, float("inf"), 1.0, plugins=plugin)
    return module.is_at(0.5) and _scale(plugin) == 4.0


def _static_scaling(device: str) -> bool:
    """Whether an overflow leaves a scale that is never to grow as it was."""
    plugin = scaled(device, growth_interval=2**31 - 1)
    fitted(device, Tiny(), float("inf"), plugins=plugin)
    return _scale(plugin) == 8.0


def _unscaled_manually(times: int, device: str) -> bool:
    """Whether gradients can be unscaled by hand after the backward pass, and then stepped with."""
    module, plugin = Tiny(), scaled(device)

    def unscale() -> None:
        assert plugin.scaler is not None
        for _ in range(times):
            plugin.scaler.unscale_(module.optimizers().optimizer)

    module.on_after_backward = unscale
    fitted(device, module, 1.0, plugins=plugin)
    return module.is_at(0.5)


def _two_optimizers(device: str) -> bool:
    module = Tiny(configured=lambda own: [torch.optim.SGD([own.weight], 0.5) for _ in range(2)])
    fitted(device, module, 1.0)
    return module.is_at(0.0)


def _two_losses(device: str) -> bool:
    """Whether two losses that a step returns each have a backward pass."""
    module = Tiny(lambda module, factor: [mean(module, factor), mean(module, factor)])
    fitted(device, module, 1.0)
    return module.is_at(0.0)


def ends_a_window_early(device: str = "cpu") -> bool:
    """Whether anything that a step returns or sets ends a window before its last micro-batch."""

    def step(module: Tiny, factor: float) -> torch.Tensor:
        module.trainer.should_stop = True
        return mean(module, factor)

    module = Tiny(step)
    with without_warnings():
        fitted(device, module, 1.0, 1.0, 1.0, accumulate_grad_batches=2)
    return not module.is_at(1.0)


def clips_fused(device: str) -> bool:
    """Whether the scaled gradients of a fused optimizer are clipped."""
    module = Tiny(configured=lambda own: torch.optim.SGD([own.weight], 0.5, fused=True))
    with without_warnings():
        fitted(device, module, 8.0, gradient_clip_val=1.0, plugins=scaled(device))
    return float((1.0 - module.weight.detach()).norm()) < 0.501


def _average(device: str) -> bool:
    module = Tiny()
    fitted(device, module, 1.0, 2.0, callbacks=[callbacks.EMAWeightAveraging(decay=0.5)])
    return module.is_at(0.0)  # (0.5 - 0.5) / 2, of the weights 0.5 and -0.5


PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_mixed, torch.float16),
    Capability.O1_BFLOAT16: partial(_mixed, torch.bfloat16),
    Capability.O3_FLOAT16: partial(_true, torch.float16),
    Capability.O3_BFLOAT16: partial(_true, torch.bfloat16),
    Capability.DYNAMIC_SCALING: _dynamic_scaling,
    Capability.STATIC_SCALING: _static_scaling,
    Capability.EXPLICIT_UNSCALE: partial(_unscaled_manually, 1),
    Capability.SECOND_UNSCALE: partial(_unscaled_manually, 2),
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.AVERAGE: _average,
}


def library_attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability."""
    return all_guarded(PROBES, device, partial(torch.random.fork_rng, []), without_warnings)


def keeps_float64_head(label: str, device: str) -> bool:
    """Whether a model's float64 weights stay float64 at a level."""
    module = Tiny()
    module.head = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    with without_warnings():
        fitted(device, module, 1.0, precision=NAMES[label])
    return bool(module.head.dtype == torch.float64)


def trainer_scales(precision: Any, device: str) -> bool:
    """Whether the Trainer's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    with without_warnings():
        plugin = fitted(device, Tiny(), 1.0, precision=precision).precision_plugin
    return getattr(plugin, "scaler", None) is not None
