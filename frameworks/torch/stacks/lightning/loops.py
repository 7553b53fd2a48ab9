"""What Lightning's Trainer does around an update: the frequency of a schedule, and the hook before a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import LambdaLR

from fixtures.arrays import Array
from frameworks.torch.core.arrays import to_array, to_tensor
from frameworks.torch.stacks.lightning.start import without_warnings
from frameworks.torch.stacks.lightning.tiny import Tiny, fitted


class _Scheduled(Tiny):
    """Counts the schedule's steps after each update."""

    def __init__(self, frequency: int) -> None:
        super().__init__()
        self._frequency = frequency
        self.stepped: list[bool] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 2.0**-8)
        optimizer.register_step_post_hook(lambda *_: self.stepped.append(True))
        self.schedule = LambdaLR(optimizer, lambda _: 1.0)
        config = {"scheduler": self.schedule, "interval": "step", "frequency": self._frequency}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.stepped) > len(self.readings):
            self.readings.append(self.schedule.last_epoch)


class _Hooked(Tiny):
    """Records the gradient in `on_before_optimizer_step`."""

    def __init__(self, gradient: torch.Tensor, fused: bool) -> None:
        super().__init__(lambda module, _: (module.weight * gradient).sum())
        self.weight = torch.nn.Parameter(torch.ones_like(gradient))
        self._fused = fused

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], 0.5, fused=self._fused)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.weight.grad is not None
        self.readings.append(self.weight.grad.clone())


def scheduled(device: str, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
    """The steps of a schedule after each update, of epochs that are as long as the first one.

    Raises:
        ValueError: the epochs differ in length.
    """
    if len(set(epochs)) != 1:
        raise ValueError(f"epochs: got {list(epochs)}, want the same length for all")
    module = _Scheduled(frequency)
    with without_warnings():
        fitted(device, module, *[1.0] * epochs[0], epochs=len(epochs), accumulate_grad_batches=accumulation)
    return tuple(module.readings)


def gradient_in_hook(device: str, gradient: Array, *, scale: float, fused: bool) -> Array:
    """The gradient in `on_before_optimizer_step`, of weights with this unscaled one."""
    module = _Hooked(to_tensor(gradient, device), fused)
    plugin = MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=scale))
    with without_warnings():
        fitted(device, module, 1.0, plugins=plugin)
    return to_array(module.readings[0])


class _ByHand(Tiny):
    """Steps by hand with a clipped gradient, by the calls of Lightning's guide to manual optimization."""

    def __init__(self, gradient: torch.Tensor, limit: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros_like(gradient))
        self._gradient = gradient
        self._limit = limit

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([self.weight], 1.0)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward((self.weight * self._gradient).sum())
        self.clip_gradients(optimizer, gradient_clip_val=self._limit, gradient_clip_algorithm="norm")
        optimizer.step()


def clip_in_manual_step(device: str, gradient: Array, *, limit: float, scale: float) -> Array:
    """The gradient that a step of manual optimization applies after `clip_gradients`."""
    module = _ByHand(to_tensor(gradient, device), limit)
    plugin = MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=scale))
    with without_warnings():
        fitted(device, module, 1.0, plugins=plugin)
    return to_array(-module.weight)
