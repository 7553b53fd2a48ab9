"""In manual optimization clip_gradients between manual_backward and step clips gradients times the loss scale."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision


class Module(LightningModule):
    weight, automatic_optimization = torch.nn.Parameter(torch.zeros(1)), False

    def training_step(self, batch, batch_idx):
        self.manual_backward((self.weight * batch).sum())
        self.clip_gradients(self.optimizers(), gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        self.optimizers().step()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 1.0)


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
precision = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
trainer = Trainer(accelerator="cpu", max_epochs=1, plugins=precision, enable_model_summary=False, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(torch.tensor([0.5])))
print(f"expected: weight -0.5, since the gradient 0.5 is below the limit 1.0\nseen: {module.weight.item()}")
sys.exit(0 if module.weight.item() == -0.5 else 1)
