"""Transformers, by the checkpoints of Trainer: a causal model with tied weights, AdamW and a schedule."""

import shutil
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

FORMS = ("checkpoint-2",)


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Train four updates and keep the checkpoint after two, or go on from it; return the numbers."""
    torch.manual_seed(not writes)
    sizes = {"n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 4, "vocab_size": 6}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    rows = [{"input_ids": row, "labels": row} for row in torch.arange(32).reshape(8, 4) % 6]
    options = {"learning_rate": 0.1, "weight_decay": 0.1, "adam_beta2": 0.75, "logging_steps": 1, "save_steps": 2}
    places = {"use_cpu": True, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(str(folder), max_steps=4, per_device_train_batch_size=2, **options, **places)
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=None if writes else str(folder / form))
    shutil.rmtree(folder / "checkpoint-4")
    tensors = {"weights": [*model.parameters()]}
    tensors["moments"] = [state["exp_avg"] for state in trainer.optimizer.state.values()]
    return {name: torch.cat([x.flatten() for x in some]).tolist() for name, some in tensors.items()}
