"""A checkpoint that `from_pretrained` loads with its defaults, trained by Trainer under `bf16=True`."""

from __future__ import annotations

import tempfile

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from fixtures.recipe import FormatName
from frameworks.contract import LoadedRun
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.trainer_loop import seeds_restored
from frameworks.torch.stacks.trainer_probes import QUIET
from frameworks.torch.stacks.warned import watched

_WORDS = ("bf16", "bfloat16", "float16", "fp16", "float32", "fp32", "dtype", "precision")
"""A warning about formats has one of them."""


def trained(saved: FormatName, updates: int, rate: float, device: str) -> LoadedRun:
    """A tiny Llama, by AdamW; the weights that count are those of its last norm, which begin as ones."""
    config = LlamaConfig(
        vocab_size=16, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, use_cache=False
    )
    rows = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in torch.arange(8 * updates).view(-1, 8) % 13]
    given = {"optim": "adamw_torch", "learning_rate": rate, "bf16": True, "max_steps": updates, "log_level": "passive"}
    with (
        tempfile.TemporaryDirectory() as folder,
        first_state(),
        seeds_restored(),
        torch.random.fork_rng(),
        watched() as warned,
    ):
        torch.manual_seed(0)
        LlamaForCausalLM(config).to(getattr(torch, saved)).save_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        weight = model.model.norm.weight
        loaded, before = weight.dtype, weight.detach().clone().cpu()
        trainer = Trainer(
            model, TrainingArguments(**(QUIET | given | {"use_cpu": device == "cpu"})), train_dataset=rows
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        moved = weight.detach().cpu() != before
    says_so = any(word in text.lower() for text in warned for word in _WORDS)
    return LoadedRun(dtype_name(loaded), int(moved.sum()), moved.numel(), warned=says_so)
