"""Runs of a head by transformers' Trainer, with plain SGD and without clipping."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from frameworks.torch.stacks.heads.batches import ROWS, Row, collate
from frameworks.torch.stacks.heads.passes import Gradients, gradients_of, state_of
from frameworks.torch.stacks.library_runs import watched


@dataclass(frozen=True)
class Window:
    """One update by Trainer: its loss and gradients, whether Trainer takes the model to divide by the number of items,
    and what it logged or warned about."""

    loss: float
    gradients: Gradients
    divides: bool
    said: tuple[str, ...]


class _GradientReader(TrainerCallback):
    """The gradients when the optimizer gets them."""

    def __init__(self) -> None:
        self.gradients: Gradients = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.gradients = gradients_of(named["model"])


def window(model: Any, rows: Sequence[Row], k: int) -> Window:
    """One update of all rows in `k` micro-batches."""
    reader = _GradientReader()
    with TemporaryDirectory() as folder, _listening() as said:
        trainer = trainer_of(model, rows, folder, k, callbacks=[reader], max_steps=1)
        result = trainer.train()
    return Window(result.training_loss, reader.gradients, bool(trainer.model_accepts_loss_kwargs), tuple(said))


def trainer_of(
    model: Any, rows: Sequence[Row], folder: str | Path, k: int = 1, callbacks: Sequence[Any] = (), **changes: Any
) -> Trainer:
    """A Trainer on the CPU whose window is all rows."""
    settings: dict[str, Any] = {
        "optim": "sgd",
        "learning_rate": 2.0**-10,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        **changes,
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS // k,
        gradient_accumulation_steps=k,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        seed=0,
        **settings,
    )
    return Trainer(model, arguments, data_collator=collate, train_dataset=list(rows), callbacks=list(callbacks))


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collects warnings and log messages of transformers, whose logger is set to show them."""
    logger = logging.getLogger("transformers")
    former = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with watched("transformers") as said:
            yield said
    finally:
        logger.setLevel(former)


def resumed(
    model: Any, fresh: Any, rows: Sequence[Row]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[str]]:
    """The states at the end of a run of four updates, and of one that a new Trainer of `fresh` resumes after two, and
    what was logged.

    A state has weights, buffers, the optimizer's moments and the CPU's random state.
    """
    with TemporaryDirectory() as folder, _listening() as said:
        names: dict[str, Any] = {"optim": "adamw_torch", "max_steps": 4, "save_steps": 2, "save_strategy": "steps"}
        whole = trainer_of(model, rows, folder, k=2, **names)
        whole.train()
        unbroken = _state(whole)
        torch.manual_seed(1)
        other = trainer_of(fresh, rows, folder, k=2, **names)
        other.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-2"))
        return unbroken, _state(other), said


def _state(trainer: Trainer) -> dict[str, torch.Tensor]:
    return state_of(trainer.model, getattr(trainer.optimizer, "optimizer", trainer.optimizer))
