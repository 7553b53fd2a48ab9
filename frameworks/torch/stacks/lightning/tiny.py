"""The smallest module that Lightning's Trainer trains, for attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from frameworks.torch.stacks.lightning.start import BARE, quiet, without_warnings

Step = Callable[["Tiny", float], Any]


def _sgd(module: Tiny) -> torch.optim.Optimizer:
    return torch.optim.SGD([module.weight], 0.5)


def mean(module: Tiny, factor: float) -> torch.Tensor:
    return (module.weight * factor).sum()


class Tiny(LightningModule):
    """Two weights of 1.0 under SGD of rate 0.5; a batch is a factor of their sum.

    Attributes:
        readings: whatever a step records.
    """

    def __init__(self, step: Step = mean, configured: Callable[[Tiny], Any] = _sgd) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.readings: list[Any] = []
        self._step = step
        self._configured = configured

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self._step(self, float(batch))

    def configure_optimizers(self) -> Any:
        return self._configured(self)


def fitted(device: str, module: Tiny, *factors: float, epochs: int = 1, **given: Any) -> Trainer:
    """A Trainer that has trained the module on these batches, each epoch."""
    quiet()
    with without_warnings():
        trainer = Trainer(accelerator=device, max_epochs=epochs, **BARE, **given)
        trainer.fit(module, DataLoader(torch.tensor(factors), batch_size=None))
    return trainer
