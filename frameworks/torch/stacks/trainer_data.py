"""What Trainer makes of requests for low precision, and of its own data loader after a resume."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments

from fixtures.recipe import FormatName
from frameworks.contract import DataRun, FormatRequest, RowOrder
from frameworks.torch.core.arrays import dtype_name
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.numbered_rows import EPOCHS, STEPS, Dropping, NumberedRows
from frameworks.torch.stacks.trainer_loop import seeds_restored
from frameworks.torch.stacks.trainer_probes import QUIET, TrainerAttempt
from frameworks.torch.stacks.warned import watched


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
