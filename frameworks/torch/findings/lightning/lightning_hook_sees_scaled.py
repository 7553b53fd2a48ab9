"""With a fused optimizer the hook on_before_optimizer_step finds gradients multiplied by the loss scale."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 0.1, fused=True)

    def on_before_optimizer_step(self, optimizer):
        self.seen = self.weight.grad.item()


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=8.0))
trainer = Trainer(accelerator="cpu", max_epochs=1, plugins=precision, enable_model_summary=False, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(torch.ones(1)))
print(f"expected: gradient 1.0 in the hook\nseen: {module.seen}")
sys.exit(0 if module.seen == 1.0 else 1)
