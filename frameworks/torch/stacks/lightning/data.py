"""What Lightning makes of requests for low precision, and of a data loader after a resume."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fixtures.recipe import FormatName
from frameworks.contract import DataRun, FormatRequest, RowOrder
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.stacks.lightning.start import quiet
from frameworks.torch.stacks.lightning.tiny import Tiny, fitted
from frameworks.torch.stacks.numbered_rows import EPOCHS, STEPS, Dropping, loader
from frameworks.torch.stacks.warned import watched

_ASKED: dict[FormatName, Any] = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}
_REPORTED = {"16-mixed": "float16", "bf16-mixed": "bfloat16", "32-true": "float32"}


class _Rows(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dropping()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch)["loss"]
        return loss

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
                    devices=1,
                    max_epochs=EPOCHS,
                    accumulate_grad_batches=STEPS,
                    callbacks=[] if resumed else [saving],
                    enable_checkpointing=not resumed,
                    logger=False,
                    enable_progress_bar=False,
                    enable_model_summary=False,
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
