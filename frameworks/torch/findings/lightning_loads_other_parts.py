"""A checkpoint with a schedule is loaded into a run without one, which leaves it out without a word."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    def __init__(self, scheduled):
        super().__init__()
        self.weight, self.scheduled = torch.nn.Parameter(torch.zeros(1)), scheduled

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([self.weight], 1.0)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)] if self.scheduled else []


data, given, seen = torch.utils.data.DataLoader(torch.ones(1)), {"logger": False, "enable_progress_bar": False}, "none"
with tempfile.TemporaryDirectory() as folder:
    for epochs, path in ((1, None), (2, f"{folder}/run.ckpt")):
        trainer = Trainer(accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, **given)
        try:
            trainer.fit(Module(path is None), data, ckpt_path=path)
        except Exception as error:
            seen = str(error)
        trainer.save_checkpoint(f"{folder}/run.ckpt")
print(f"expected: an error, since the run has no place for the schedule\nseen: {seen}")
sys.exit(0 if seen != "none" else 1)
