"""`max_grad_norm=0`, documented to disable clipping, makes all parameters NaN where one gradient is infinite."""

import math
import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return {"loss": (self.weight * x).sum()}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(folder, use_cpu=True, optim="sgd", learning_rate=0.5, max_grad_norm=0.0, max_steps=1,
                                  lr_scheduler_type="constant", report_to="none", disable_tqdm=True)  # fmt: skip
    model = Model()
    Trainer(model, arguments, train_dataset=[{"x": torch.tensor([math.inf, 1.0])}]).train()
print("expected: [-inf, -0.5]")
print(f"seen: {model.weight.tolist()}")
sys.exit(0 if model.weight.tolist() == [-math.inf, -0.5] else 1)
