"""On a CPU `fp16=True` runs in float32 without a loss scaler, and neither raises nor warns of it."""

import sys
import tempfile
import warnings

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x):
        seen.append((output := self.layer(x)).dtype)
        return {"loss": output.sum()}


seen = []
with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as warned:
    arguments = TrainingArguments(folder, use_cpu=True, fp16=True, max_steps=1, report_to="none", disable_tqdm=True)
    trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.ones(1)}])
    trainer.train()
warnings_about_it = [entry for entry in warned if "fp16" in str(entry.message) or "float16" in str(entry.message)]
print("expected: torch.float16 and a scaler, or an exception or a warning")
print(f"seen: {seen[0]}, scaler: {trainer.accelerator.scaler}, warnings: {len(warnings_about_it)}")
sys.exit(0 if warnings_about_it or (seen[0] == torch.float16 and trainer.accelerator.scaler) else 1)
