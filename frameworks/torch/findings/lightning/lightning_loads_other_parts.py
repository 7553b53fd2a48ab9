"""Trainer.fit loads a checkpoint with a schedule into a run without one, and drops the schedule in silence."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([self.weight], 1.0)
        return [optimizer], [] if self.trainer.max_epochs == 2 else [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


data, quiet = torch.utils.data.DataLoader(torch.ones(1)), {"logger": False, "enable_progress_bar": False}
with tempfile.TemporaryDirectory() as folder:
    for epochs, path in ((1, None), (2, f"{folder}/run.ckpt")):
        trainer = Trainer(accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, **quiet)
        trainer.fit(Module(), data, ckpt_path=path)
        trainer.save_checkpoint(f"{folder}/run.ckpt")
print(f"expected: an error, since the run has no place for the schedule\nseen: epoch {trainer.current_epoch}")
sys.exit(0 if trainer.current_epoch < 2 else 1)
