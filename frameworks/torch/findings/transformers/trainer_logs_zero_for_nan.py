"""With its default filter for NaN Trainer logs a loss of 0.0 for NaN where each step is logged."""

import math
import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return {"loss": (self.weight * x).sum()}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, use_cpu=True, learning_rate=0.0, logging_steps=1, num_train_epochs=1,
                                  per_device_train_batch_size=1, train_sampling_strategy="sequential",
                                  report_to="none", disable_tqdm=True)  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=[{"x": torch.tensor(x)} for x in (1.0, 2.0, math.nan, 4.0)])
    trainer.train()
seen = [log["loss"] for log in trainer.state.log_history if "loss" in log]
print("expected: 1.0, 2.0, and in the third place NaN or an average of losses before it")
print(f"seen: {seen}")
sys.exit(0 if seen[2] != 0.0 else 1)
