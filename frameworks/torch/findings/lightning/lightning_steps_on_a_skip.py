"""The schedule, global_step and the average of the weights advance with an update that the loss scaler skips."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD([self.weight], 0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": self.schedule, "interval": "step"}]


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
trainer = Trainer(accelerator="cpu", max_epochs=1, plugins=precision, enable_model_summary=False, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(torch.tensor([1.0, float("inf")])))
print("expected: one applied update, global_step 1, 1 step of the schedule")
print(f"seen: global_step {trainer.global_step}, {module.schedule.last_epoch} steps of the schedule")
sys.exit(0 if (trainer.global_step, module.schedule.last_epoch) == (1, 1) else 1)
