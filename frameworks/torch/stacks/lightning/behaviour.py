"""What Lightning makes of requests for low precision, a resumed data loader, schedules, and a step's gradients."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.optim.lr_scheduler import LambdaLR

from fixtures.arrays import Array
from fixtures.recipe import FormatName
from frameworks.contract import DataRun, FormatRequest, RowOrder
from frameworks.torch.core.arrays import dtype_name, to_array, to_tensor
from frameworks.torch.stacks.library_runs import EPOCHS, STEPS, Dropping, loader, watched
from frameworks.torch.stacks.lightning.start import BARE, quiet, scaled
from frameworks.torch.stacks.lightning.tiny import Tiny, fitted

_ASKED: dict[FormatName, Any] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
_REPORTED = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "32-true": "float32"}


class _Rows(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dropping()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 2.0**-8)


def resumed_epoch(order: RowOrder, windows: int, device: str) -> tuple[DataRun, DataRun]:
    """The unbroken run, which writes checkpoints, and one that is resumed from one of them."""
    quiet()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for resumed in (False, True):
            saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=windows, save_top_k=-1)
            with torch.random.fork_rng():
                module = _Rows()
                trainer = Trainer(
                    accelerator=device,
                    max_epochs=EPOCHS,
                    accumulate_grad_batches=STEPS,
                    callbacks=[] if resumed else [saving],
                    **{**BARE, "enable_checkpointing": not resumed},
                )
                trainer.fit(module, loader(order), ckpt_path=f"{folder}/step={windows}.ckpt" if resumed else None)
                runs.append(module.model.since(0 if resumed else windows * STEPS))
    return runs[0], runs[1]


def trainer_requested(format_name: FormatName, device: str) -> FormatRequest:
    """What the Trainer makes of a request for mixed precision, without this adapter's plugin."""
    formats: list[torch.dtype] = []

    def product(module: Tiny, factor: float) -> torch.Tensor:
        y = torch.full((2, 2), factor, device=module.device) @ module.weight
        formats.append(y.dtype)
        return y.sum()

    with watched() as warned:
        trainer = fitted(device, Tiny(product), 1.0, precision=_ASKED[format_name])
    return _request(formats[0], trainer.precision, warned)


def fabric_requested(format_name: FormatName, device: str) -> FormatRequest:
    """What Fabric makes of a request for mixed precision, without this adapter's plugin."""
    formats: list[torch.dtype] = []
    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
    with watched() as warned:
        fabric = Fabric(accelerator=device, devices=1, precision=_ASKED[format_name])
        fabric.setup_module(layer)(torch.ones(2, 2, device=device))
    return _request(formats[0], fabric.strategy.precision.precision, warned)


def _request(ran: torch.dtype, reported: str, warned: list[str]) -> FormatRequest:
    says_so = any("mixed" in text or "AMP" in text for text in warned)
    return FormatRequest(dtype_name(ran), _REPORTED[reported], warned=says_so)


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
    fitted(device, module, *[1.0] * epochs[0], epochs=len(epochs), accumulate_grad_batches=accumulation)
    return tuple(module.readings)


def gradient_in_hook(device: str, gradient: Array, *, scale: float, fused: bool) -> Array:
    """The gradient in `on_before_optimizer_step`, of weights with this unscaled one."""
    module = _Hooked(to_tensor(gradient, device), fused)
    fitted(device, module, 1.0, plugins=scaled(MixedPrecision, device, init_scale=scale))
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
    fitted(device, module, 1.0, plugins=scaled(MixedPrecision, device, init_scale=scale))
    return to_array(-module.weight)
