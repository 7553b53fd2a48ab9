"""A checkpoint of EMAWeightAveraging has the average for weights: a run resumed without the callback trains that."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.begin = torch.nn.Parameter(torch.zeros(1)), None

    def training_step(self, batch, batch_idx):
        self.begin = self.weight.item() if batch_idx == 0 else self.begin
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)

    def on_train_epoch_end(self):
        self.end = self.weight.item()
        self.trainer.save_checkpoint(f"{folder}/run.ckpt")


data, first, second = torch.utils.data.DataLoader(torch.ones(2)), Module(), Module()
with tempfile.TemporaryDirectory() as folder:
    for epochs, module, calls, path in ((1, first, [EMAWeightAveraging(decay=0.5)], None), (2, second, [], "run.ckpt")):
        trainer = Trainer(
            accelerator="cpu", max_epochs=epochs, callbacks=calls, logger=False, enable_progress_bar=False
        )
        trainer.fit(module, data, ckpt_path=path and f"{folder}/{path}")
print(f"expected: weight {first.end}, or an error\nseen: {second.begin}")
sys.exit(0 if second.begin == first.end else 1)
