"""The frequency of a step schedule counts the batches of the epoch instead of the optimizer's updates."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([self.weight], 0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": self.schedule, "interval": "step", "frequency": 2}]


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
trainer = Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, enable_model_summary=False, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(torch.ones(16)))
steps = module.schedule.last_epoch
print(f"expected: 2 steps of the schedule in {trainer.global_step} updates, every second\nseen: {steps}")
sys.exit(0 if steps == 2 else 1)
