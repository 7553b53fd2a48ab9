"""The last window of an epoch is divided by accumulate_grad_batches, however few micro-batches it has."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
trainer = Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, enable_model_summary=False, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(torch.ones(2)))
print(f"expected: weight -1.0, by the mean of two gradients of 1.0\nseen: {module.weight.item()}")
sys.exit(0 if module.weight.item() == -1.0 else 1)
