"""What Trainer makes of its data loader after a resume, of requests for low precision, and of loaded checkpoints."""

from __future__ import annotations

import tempfile
from typing import Any

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
from frameworks.contract import DataRun, FormatRequest, LoadedRun, RowOrder
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.library_runs import EPOCHS, STEPS, Dropping, NumberedRows, watched
from frameworks.torch.stacks.trainer_loop import seeds_restored
from frameworks.torch.stacks.trainer_probes import QUIET, TrainerAttempt

_WORDS = ("bf16", "bfloat16", "float16", "fp16", "float32", "fp32", "dtype", "precision")
"""A warning about formats has one of them."""


def resumed_epoch(order: RowOrder, windows: int, device: str) -> tuple[DataRun, DataRun]:
    """The unbroken run, which writes checkpoints, and one that is resumed from one of them."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for resumed in (False, True):
            with first_state(), seeds_restored(), torch.random.fork_rng():
                model = Dropping()
                given = {
                    "output_dir": folder,
                    "save_strategy": "steps",
                    "save_steps": windows,
                    "num_train_epochs": EPOCHS,
                    "gradient_accumulation_steps": STEPS,
                    "train_sampling_strategy": "sequential" if order == "in-order" else "random",
                    "use_cpu": device == "cpu",
                }
                trainer = Trainer(model, TrainingArguments(**(QUIET | given)), train_dataset=NumberedRows(order))
                trainer.remove_callback(PrinterCallback)
                trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-{windows}" if resumed else None)
                runs.append(model.since(0 if resumed else windows * STEPS))
    return runs[0], runs[1]


def requested(format_name: FormatName, device: str) -> FormatRequest:
    """What Trainer makes of a request for mixed precision, without this adapter's additions."""
    with first_state(), seeds_restored(), torch.random.fork_rng(), watched() as warned:
        asked: dict[str, Any] = {"fp16": True} if format_name == "float16" else {"bf16": True}
        made, formats = TrainerAttempt(device, [1.0], **asked), list[torch.dtype]()
        made.model.inner.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
        made.train()
        reported = {"fp16": "float16", "bf16": "bfloat16", "no": "float32"}[made.accelerator.mixed_precision]
    return FormatRequest(dtype_name(formats[0]), reported, warned=bool(warned))


def loaded_run(saved: FormatName, updates: int, rate: float, device: str) -> LoadedRun:
    """A tiny Llama that `from_pretrained` loads with its defaults, trained by AdamW under `bf16=True`.

    The weights that count are those of its last norm, which begin as ones.
    """
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
