"""A checkpoint inside an accumulation window lacks its gradients, and the resumed run ends the window without them."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    def __init__(self, path=None):
        super().__init__()
        self.weight, self.path = torch.nn.Parameter(torch.zeros(1)), path

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.path and batch_idx == 1:
            self.trainer.save_checkpoint(self.path)


data, given = torch.utils.data.DataLoader(torch.ones(4)), {"logger": False, "enable_progress_bar": False}
with tempfile.TemporaryDirectory() as folder:
    for module, file in ((Module(f"{folder}/run.ckpt"), None), (last := Module(), f"{folder}/run.ckpt")):
        Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, **given).fit(module, data, ckpt_path=file)
print(f"expected: weight -1.0, by the mean of four gradients of 1.0\nseen: {last.weight.item()}")
sys.exit(0 if last.weight.item() == -1.0 else 1)
