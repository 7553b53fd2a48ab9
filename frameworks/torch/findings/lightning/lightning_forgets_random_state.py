"""A checkpoint of Lightning's Trainer lacks the random state: a resumed run draws other numbers."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    weight, drawn = torch.nn.Parameter(torch.zeros(1)), ()

    def training_step(self, batch, batch_idx):
        self.drawn += (torch.rand(1).item(),)
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)


quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
data, modules = torch.utils.data.DataLoader(torch.ones(1)), [Module() for _ in range(3)]
with tempfile.TemporaryDirectory() as folder:
    for module, epochs, path in zip(modules, (2, 1, 2), (None, None, f"{folder}/run.ckpt"), strict=True):
        torch.manual_seed(0 if path is None else 7)  # as another process begins
        trainer = Trainer(accelerator="cpu", max_epochs=epochs, **quiet)
        trainer.fit(module, data, ckpt_path=path)
        trainer.save_checkpoint(f"{folder}/run.ckpt")
print(f"expected: {modules[0].drawn[1]} in the second epoch\nseen: {modules[2].drawn[0]}")
sys.exit(0 if modules[0].drawn[1] == modules[2].drawn[0] else 1)
