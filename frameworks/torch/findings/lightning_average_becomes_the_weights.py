"""A checkpoint of EMAWeightAveraging has the average for weights: a run resumed without the callback trains that."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging


class Module(LightningModule):
    begin = None

    def configure_model(self):
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        self.begin = self.begin or self.weight.item()
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)

    def on_train_epoch_end(self):
        self.trainer.save_checkpoint(file)


data, file = torch.utils.data.DataLoader(torch.ones(2)), f"{tempfile.mkdtemp()}/run.ckpt"
for epochs, calls in ((1, [EMAWeightAveraging(decay=0.5)]), (2, [])):
    trainer = Trainer(accelerator="cpu", max_epochs=epochs, callbacks=calls, enable_checkpointing=False, logger=False)
    trainer.fit(module := Module(), data, ckpt_path=None if calls else file)
print(f"expected: an error, or a weight of -2.0, after two updates\nseen: {module.begin}")
sys.exit(0 if module.begin == -2.0 else 1)
