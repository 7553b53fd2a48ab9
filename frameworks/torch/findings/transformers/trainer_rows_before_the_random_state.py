"""Resumed inside an epoch, Trainer draws the first rows before it restores the random state, so they differ."""

import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments


def draw_row(_rows):
    return {"x": torch.rand(1)}


class Model(torch.nn.Linear):
    def forward(self, x):
        seen.append(round(x.item(), 4))
        return {"loss": super().forward(x).sum()}


runs = []
with tempfile.TemporaryDirectory() as folder:
    options = {"use_cpu": True, "num_train_epochs": 1, "per_device_train_batch_size": 1, "save_steps": 2}
    for checkpoint in (None, f"{folder}/checkpoint-2"):
        seen = []
        arguments = TrainingArguments(folder, **options, report_to="none", disable_tqdm=True)
        Trainer(Model(1, 1), arguments, draw_row, list(range(6))).train(resume_from_checkpoint=checkpoint)
        runs.append(seen[0 if checkpoint else 2 :])
print("expected:", runs[0])
print("seen:", runs[1])
sys.exit(0 if runs[0] == runs[1] else 1)
