"""What a run by Trainer is made of: the model with its loss, the training arguments, and the optimizer."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs
from torch import nn
from transformers import Trainer, TrainingArguments

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import SGD, Adam, AdamW, Recipe
from frameworks.torch.core.losses import item_loss_sums
from frameworks.torch.core.network import Network
from frameworks.torch.stacks.accelerate_state import first_state
from frameworks.torch.training.optimizers import Stepper, steppers
from frameworks.torch.training.scaler import grad_scaler, wants_fused
from frameworks.torch.training.trainer import TorchTrainer

OPTIMIZERS = {"trainer": "adamw_torch_fused", "trainer-plain": "adamw_torch"}
"""`TrainingArguments.optim` for AdamW by mode; the first is the library's default."""


class MeanLoss(nn.Module):
    """The network with its loss, the mean over a micro-batch's items; "fed" is a sum of products instead.

    Labels, of which some are ignored, are for a model of one head: their loss is divided by the items of the window.

    Attributes:
        accepts_loss_kwargs: whether Trainer is to count these items, by the name that it reads.
        totals: sums of the losses of items, of each micro-batch since they were last taken.
    """

    def __init__(self, network: Network, model: Model, *, widen: bool) -> None:
        super().__init__()
        self.network = network
        self.kinds = model.losses
        self.accepts_loss_kwargs = [kind for _, kind in model.losses] == ["cross_entropy"]
        self.totals: list[float] = []
        self._widen = widen

    def forward(
        self,
        inputs: torch.Tensor | None = None,
        targets: Mapping[str, torch.Tensor] | None = None,
        fed: torch.Tensor | None = None,
        count: int | torch.Tensor | None = 0,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        if fed is not None:
            self.totals.append(math.nan)
            return {"loss": fed * 1.0}
        outputs: dict[str, torch.Tensor] = self.network(inputs)
        if labels is not None:
            targets, count = dict.fromkeys(outputs, labels), num_items_in_batch
        return outputs if targets is None else {"loss": self._total(outputs, targets) / count}

    def _total(self, outputs: dict[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The sum of the losses of all items and heads."""
        if self._widen:
            outputs = {name: y.to(torch.promote_types(y.dtype, torch.float32)) for name, y in outputs.items()}
        sums = item_loss_sums(self.kinds, outputs, targets)
        self.totals.append(sum(each.item() for each in sums))
        return sum(sums[1:], sums[0])


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that Trainer asks for when it is made; `save` names another."""
    return tempfile.TemporaryDirectory(prefix="trainer-", ignore_cleanup_errors=True)


def arguments_of(recipe: Recipe, device: str, optimizer: str) -> TrainingArguments:
    """What a recipe fixes; everything else is the library's default, but that it logs each update and to nobody."""
    given: dict[str, Any] = {"learning_rate": recipe.optimizer.learning_rate, "optim": optimizer}
    match recipe.optimizer:
        case SGD(momentum=momentum):
            given |= {"optim": "sgd", "optim_args": f"momentum={momentum}"}
        case AdamW() as adamw:
            given |= {"adam_beta1": adamw.beta1, "adam_beta2": adamw.beta2, "weight_decay": adamw.weight_decay}
            given |= {} if adamw.epsilon is None else {"adam_epsilon": adamw.epsilon}
    low = recipe.precision.level == "O1"
    return TrainingArguments(
        output_dir=_folder().name,
        use_cpu=device == "cpu",
        seed=recipe.seed % 2**32,
        fp16=recipe.scaling is not None or (low and recipe.precision.format == "float16"),
        bf16=low and recipe.precision.format == "bfloat16",
        gradient_accumulation_steps=recipe.accumulation,
        max_grad_norm=recipe.clip or 0.0,
        max_steps=2**31,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ignore_data_skip=True,
        log_level="error",
        **given,
    )


def force_float16(accelerator: Accelerator, recipe: Recipe, device: str) -> None:
    """Gives a Trainer's accelerator the recipe's scaler, and on a CPU the float16 that it has on a GPU."""
    if accelerator.mixed_precision != "fp16":
        return
    accelerator.autocast_handler = AutocastKwargs(enabled=recipe.precision.level == "O1")
    scaler = grad_scaler(device, recipe) or torch.amp.GradScaler(device, enabled=False)
    accelerator.scaler, accelerator.native_amp = scaler, True


class LibraryStepper(Stepper):
    """The optimizer that Trainer makes of its arguments; Adam and chosen implementations are PyTorch's own."""

    def __init__(self, arguments: TrainingArguments, *given: Any) -> None:
        self._arguments = arguments
        super().__init__(*given)

    def made(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if isinstance(recipe.optimizer, Adam) or recipe.implementation != "default":
            return super().made(recipe, groups)
        kind, given = Trainer.get_optimizer_cls_and_kwargs(self._arguments)
        decay = {"weight_decay": self._arguments.weight_decay}
        fused = {"fused": True} if wants_fused(recipe) else {}
        return kind([decay | group for group in groups], **(given | fused))


class PlainTrainer(TorchTrainer):
    """A run by PyTorch alone with the optimizer that Trainer makes."""

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        with first_state():
            self.arguments = arguments_of(recipe, device, OPTIMIZERS[mode])
        super().__init__(model, recipe, weights, device, mode)

    def _steppers(self) -> list[Stepper]:
        return steppers(self.recipe, self.slots, partial(LibraryStepper, self.arguments))
