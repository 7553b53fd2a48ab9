"""A fused optimizer's gradients are not clipped under bf16-mixed either, which has no loss scaler."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 0.1, fused=True)


quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = Trainer(accelerator="cpu", max_epochs=1, precision="bf16-mixed", gradient_clip_val=0.5, **quiet)
module, seen = Module(), ""
try:
    trainer.fit(module, torch.utils.data.DataLoader(torch.ones(1)))
except RuntimeError as error:
    seen = str(error)
print(f"expected: weight 0.95, by a clipped gradient of 0.5\nseen: {seen or module.weight.item()}")
sys.exit(1 if seen else 0)
