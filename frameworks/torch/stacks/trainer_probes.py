"""Attempts with Trainer's own calls, and what it lacks."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from accelerate.utils import AutocastKwargs
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from fixtures.recipe import Recipe
from frameworks.contract import Attempt, Capability, Unsupported
from frameworks.torch.core import devices
from frameworks.torch.core.guards import Probe, guarded
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.stacks.trainer_loop import seeds_restored
from frameworks.torch.training.scaler import wants_fused

LOW_MODEL_SCALED = (
    "Trainer logs the norm of unscaled gradients, and GradScaler.unscale_ refuses a float16 model's gradients"
)
BFLOAT16_SCALED = "Trainer's loss scaler comes with fp16=True, and its bf16 has none"
REFUSED: Mapping[Capability, str] = {
    Capability.STATIC_SCALING: "Trainer's loop calls GradScaler.update without a scale; no setting keeps the scale",
    Capability.TWO_OPTIMIZERS: "Trainer takes one optimizer",
    Capability.TWO_LOSSES: "Trainer makes one backward pass through each forward pass",
    Capability.AVERAGE: "Trainer keeps no average of the weights",
}

QUIET: dict[str, Any] = {
    "optim": "sgd",
    "learning_rate": 0.5,
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "constant",
    "output_dir": tempfile.gettempdir(),
    "per_device_train_batch_size": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "log_level": "error",
}
"""Training arguments of plain SGD at a rate of 0.5, one row a micro-batch."""

Row = Mapping[str, float]


class _Values(IterableDataset[Row]):
    """Rows in their order: micro-batches of one value each."""

    def __init__(self, values: Sequence[float], length: int) -> None:
        self._values, self._length = values, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Row]:
        return iter([{"value": value} for value in self._values])


class _Product(nn.Module):
    """Two weights of ones; the loss is the sum of their products with the value."""

    def __init__(self, losses: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.inner = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.inner.weight).requires_grad_(False)
        self._losses = losses

    def forward(self, value: torch.Tensor) -> dict[str, Any]:
        loss = (self.inner(self.weight[None]).float() * value).sum()
        return {"loss": loss if self._losses == 1 else [loss] * self._losses}


class TrainerAttempt(Trainer):
    """Trains a product with SGD at a rate of 0.5 over values.

    Args:
        length: micro-batches that the data claim to have; None: their real number.
        scaler: settings of the loss scaler, by which float16 is asked for; autocast stays off.
        given: further training arguments.
    """

    def __init__(
        self,
        device: str,
        values: Sequence[float],
        *callbacks: TrainerCallback,
        length: int | None = None,
        scaler: Mapping[str, Any] | None = None,
        optimizer: Any = None,
        losses: int = 1,
        autocast: bool = False,
        **given: Any,
    ) -> None:
        self._device, self._settings, self._autocast = device, scaler, autocast
        arguments = QUIET | {"num_train_epochs": 1, "fp16": scaler is not None, "use_cpu": device == "cpu"}
        super().__init__(
            model=_Product(losses),
            args=TrainingArguments(**(arguments | given)),
            train_dataset=_Values(values, len(values) if length is None else length),
            callbacks=list(callbacks),
            optimizers=(optimizer, None),
        )
        self.remove_callback(PrinterCallback)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self._settings is not None:
            scaler = torch.amp.GradScaler(self._device, **{"init_scale": 1024.0, **self._settings})
            self.accelerator.autocast_handler = AutocastKwargs(enabled=self._autocast)
            self.accelerator.scaler, self.accelerator.native_amp = scaler, True

    def get_train_dataloader(self) -> DataLoader[Row]:
        return DataLoader(self.train_dataset, batch_size=1)

    def weights(self) -> float:
        """The first weight after `train()`."""
        self.train()
        return float(self.model.weight.detach()[0])

    @property
    def scale(self) -> float:
        return float(self.accelerator.scaler.get_scale())


def _format_inside(dtype: torch.dtype, device: str) -> bool:
    low: dict[str, Any] = {"bf16": True}
    if dtype == torch.float16:
        low = {"scaler": {"enabled": False}, "autocast": True}
    made, formats = TrainerAttempt(device, [1.0], **low), list[torch.dtype]()
    made.model.inner.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
    made.train()
    return formats == [dtype]


def _dynamic(device: str) -> bool:
    made = TrainerAttempt(device, [math.inf, 1.0], scaler={})
    return made.weights() == 0.5 and made.scale == 512.0


def _static(device: str) -> bool:
    return TrainerAttempt(device, [math.inf], scaler={"growth_factor": 1.0, "backoff_factor": 1.0}).weights() == 1.0


def _two_optimizers(device: str) -> bool:
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    return TrainerAttempt(device, [1.0], optimizer=[torch.optim.SGD([w], lr=0.5) for w in weights]).weights() == 0.5


def _two_losses(device: str) -> bool:
    return TrainerAttempt(device, [1.0], losses=2).weights() == 0.0


def open_window_ends(device: str) -> bool:
    """Whether data that end before their length make an update of what the window holds."""
    return TrainerAttempt(device, [1.0, 3.0], length=4, gradient_accumulation_steps=4).weights() == 0.0


def step_is_left_out(device: str) -> bool:
    """Whether a window's step is left out where a callback asks for the end of training before it."""

    class Stops(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = control.should_epoch_stop = True
            return control

    return TrainerAttempt(device, [1.0], Stops(), scaler={}).weights() == 1.0


def _average(device: str) -> bool:
    """Whether a training argument names an average of the weights."""
    del device
    words = {word for name in TrainingArguments.__dataclass_fields__ for word in name.split("_")}
    return bool(words & {"ema", "swa", "averaged"})


def bfloat16_is_scaled(device: str) -> bool:
    """Whether the accelerator of a Trainer with bf16 has a loss scaler."""
    return TrainerAttempt(device, [1.0], bf16=True).accelerator.scaler is not None


def low_model_is_scaled(device: str) -> bool:
    """Whether a fused optimizer of a float16 model gets scaled gradients."""
    trainer = TrainerAttempt(device, [1.0], scaler={}, optim="adamw_torch_fused")
    trainer.model.half()
    return trainer.weights() < 1.0


def require_scaling(recipe: Recipe, device: str) -> None:
    """Refuses a loss scale for bfloat16 operations, and for a float16 model whose optimizer unscales the gradients.

    Raises:
        Unsupported: DYNAMIC_SCALING.
    """
    if wants_fused(recipe):
        raise Unsupported(Capability.DYNAMIC_SCALING, LOW_MODEL_SCALED, alone(low_model_is_scaled, device))
    if recipe.scaling is not None and recipe.precision.label == "O1-bfloat16":
        raise Unsupported(Capability.DYNAMIC_SCALING, BFLOAT16_SCALED, alone(bfloat16_is_scaled, device))


_PROBES: dict[Capability, Probe] = {
    Capability.O1_FLOAT16: partial(_format_inside, torch.float16),
    Capability.O1_BFLOAT16: partial(_format_inside, torch.bfloat16),
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.AVERAGE: _average,
}


def attempts(device: str) -> dict[Capability, Attempt]:
    """Attempts by capability; each has a state of its own."""
    return {capability: alone(probe, device) for capability, probe in _PROBES.items()}


def alone(probe: Probe, device: str) -> Attempt:
    """The attempt on a device, with a state of its own."""
    return guarded(probe, device, first_state, seeds_restored, partial(devices.random_apart, device))
