"""Trainer resumes ViT without converting the checkpoint's keys back, so parameters keep their initial values."""

import sys
from tempfile import TemporaryDirectory

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
config = ViTConfig(**sizes, image_size=16, patch_size=8)
rows = [{"pixel_values": torch.full((3, 16, 16), row / 8), "labels": torch.tensor(row % 2)} for row in range(8)]
with TemporaryDirectory() as folder:
    counts = {"per_device_train_batch_size": 8, "max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    arguments = TrainingArguments(folder, **counts, report_to=[], use_cpu=True, disable_tqdm=True)
    first, second = ViTForImageClassification(config), ViTForImageClassification(config)
    Trainer(first, arguments, train_dataset=rows).train()
    Trainer(second, arguments, train_dataset=rows).train(resume_from_checkpoint=f"{folder}/checkpoint-1")

saved = dict(first.named_parameters())
other = [name for name, value in second.named_parameters() if not torch.equal(value, saved[name])]
print("expected: all parameters of the checkpoint in the resumed model")
print(f"seen: {len(other)} of {len(saved)} parameters as the new model was initialised")
sys.exit(1 if other else 0)
