"""A checkpoint under EMAWeightAveraging has the average in place of the model's own weights."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging


class Module(LightningModule):
    def configure_model(self):
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)


average = EMAWeightAveraging(decay=0.5)
trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[average], enable_checkpointing=False, logger=False)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2)))
with tempfile.TemporaryDirectory() as folder:
    trainer.save_checkpoint(f"{folder}/run.ckpt")
    seen = torch.load(f"{folder}/run.ckpt", weights_only=False)["state_dict"]["weight"].item()
print(f"expected: a weight of -2.0 in the checkpoint, after two updates\nseen: {seen}")
sys.exit(0 if seen == -2.0 else 1)
