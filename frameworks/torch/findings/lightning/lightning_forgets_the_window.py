"""A checkpoint inside an accumulation window lacks its gradients, and the resumed run ends the window without them."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    def configure_model(self):
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == 1:
            self.trainer.save_checkpoint("memory://run.ckpt")


quiet = {"logger": False, "enable_checkpointing": False}
for path in (None, "memory://run.ckpt"):
    trainer = Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, **quiet)
    trainer.fit(module := Module(), torch.utils.data.DataLoader(torch.ones(4)), ckpt_path=path)
print(f"expected: weight -1.0, by the mean of four gradients of 1.0\nseen: {module.weight.item()}")
sys.exit(0 if module.weight.item() == -1.0 else 1)
