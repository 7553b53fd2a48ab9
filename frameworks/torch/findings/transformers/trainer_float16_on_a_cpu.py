"""Does `fp16=True` on a CPU run float16 operations under a loss scaler, or refuse or warn?"""

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
print("expected: torch.float16 and a scaler, or an exception or a warning")
print(f"seen: {seen[0]}, scaler: {trainer.accelerator.scaler}, warnings: {len(warned)}")
sys.exit(0 if warned or (seen[0] == torch.float16 and trainer.accelerator.scaler) else 1)
