"""In bf16-mixed, which scales nothing, Trainer refuses to clip gradients for a fused optimizer."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer


class Module(LightningModule):
    weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, batch_idx):
        return (self.weight * batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.weight], 0.5, fused=True)


module, quiet = Module(), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
trainer = Trainer(
    accelerator="cpu", max_epochs=1, precision="bf16-mixed", gradient_clip_val=1.0, enable_model_summary=False, **quiet
)
try:
    trainer.fit(module, torch.utils.data.DataLoader(torch.full((1,), 8.0)))
    seen = f"weight {module.weight.item():.4f}"
except RuntimeError as error:
    seen = f"RuntimeError: {error}"
print(f"expected: weight 0.5000\nseen: {seen}")
sys.exit(0 if seen == "weight 0.5000" else 1)
