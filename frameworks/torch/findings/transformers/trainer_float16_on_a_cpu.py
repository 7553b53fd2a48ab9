"""On a CPU `fp16=True` runs in float32 without a loss scaler, and neither raises nor warns of it."""

import re
import sys
import tempfile
import warnings

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Linear):
    def forward(self, x):
        seen.append((output := super().forward(x)).dtype)
        return {"loss": output.sum()}


expected, seen = "torch.float16 and a scaler, or an exception or a warning", []
with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
    try:
        arguments = TrainingArguments(folder, use_cpu=True, fp16=True, max_steps=1, report_to="none", disable_tqdm=True)
        trainer = Trainer(Model(1, 1), arguments, train_dataset=[{"x": torch.ones(1)}])
        trainer.train()
        gone = seen[0] == torch.float16 and trainer.accelerator.scaler
    except Exception as error:
        if not (gone := re.search(r"\b(fp16|float16)\b", str(error))):
            raise
gone = gone or any(re.search(r"\b(fp16|float16)\b", str(entry.message)) for entry in said)
print(f"expected: {expected}\nseen: {expected if gone else f'{seen[0]}, no scaler, no exception and no warning'}")
sys.exit(not gone)
