"""PyTorch trained by `transformers.Trainer`: one run and its parts, and attempts with Trainer's own calls."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import SGD, Adam, AdamW, FormatName, Recipe
from frameworks.base import MicroBatch
from frameworks.contract import (
    Attempt,
    Capability,
    DataRun,
    FormatRequest,
    Gradients,
    LoadedRun,
    RowOrder,
    Unsupported,
    Update,
)
from frameworks.torch.core import settings
from frameworks.torch.core.layers import DeviceBatch, Network, item_loss_sums
from frameworks.torch.core.settings import dtype_name
from frameworks.torch.probes import Probe, guard_probe
from frameworks.torch.stacks.accelerate import SharedState, first_state
from frameworks.torch.stacks.framework import (
    EPOCHS,
    STEPS,
    Dropping,
    NumberedRows,
    StackFramework,
    collect_warnings,
    train_twice,
)
from frameworks.torch.stacks.trainer_loop import (
    BeforeStep,
    FedTrainer,
    Inputs,
    Loop,
    Order,
    WindowPiece,
    WorkQueue,
    seeds_restored,
)
from frameworks.torch.training.optimizers import (
    Stepper,
    good_updates,
    grad_scaler,
    scaler_settings,
    steppers,
    wants_fused,
)
from frameworks.torch.training.trainer import TorchTrainer

OPTIMIZERS = {"trainer": "adamw_torch_fused", "trainer-plain": "adamw_torch"}
"""`TrainingArguments.optim` for AdamW by mode; the first is the library's default."""
LOW_MODEL_SCALED = (
    "Trainer logs the norm of unscaled gradients, and GradScaler.unscale_ refuses a float16 model's gradients"
)
BFLOAT16_SCALED = "Trainer's loss scaler comes with fp16=True, and its bf16 has none"
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
_WORDS = ("bf16", "bfloat16", "float16", "fp16", "float32", "fp32", "dtype", "precision")
"""Words by which warnings about formats are recognized."""
_LOOP_FILE = "loop.pt"
"""The file with the user's own state, next to Trainer's files."""
_ALWAYS_STEPS = "Trainer steps the optimizer at the end of every window, and no callback leaves the step out"
_ENDS_LATER = (
    "Trainer ends a window early only at the end of its data loader, whose length it reads before the first batch"
)

Row = Mapping[str, float]


class MeanLoss(nn.Module):
    """The network with its loss, the mean over a micro-batch's items; the input "fed" replaces it by Σ p·g.

    A model of one head can get labels, some of them ignored. Their loss is divided by the items of the window.

    Attributes:
        accepts_loss_kwargs: Trainer reads this attribute; if true, it counts the items.
        totals: sum of the items' losses of each micro-batch since the last reading.
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
        self.totals.append(sum(total.item() for total in sums))
        return sum(sums[1:], sums[0])


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that Trainer requires when it is created; `save` writes to another one."""
    return tempfile.TemporaryDirectory(prefix="trainer-", ignore_cleanup_errors=True)


def arguments_of(recipe: Recipe, device: str, optimizer: str) -> TrainingArguments:
    """The arguments that a recipe fixes, and local logging of each update; the others are the library's defaults."""
    arguments: dict[str, Any] = {"learning_rate": recipe.optimizer.learning_rate, "optim": optimizer}
    match recipe.optimizer:
        case SGD(momentum=momentum):
            arguments |= {"optim": "sgd", "optim_args": f"momentum={momentum}"}
        case AdamW() as adamw:
            arguments |= {"adam_beta1": adamw.beta1, "adam_beta2": adamw.beta2, "weight_decay": adamw.weight_decay}
            arguments |= {} if adamw.epsilon is None else {"adam_epsilon": adamw.epsilon}
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
        **arguments,
    )


def install_scaler(accelerator: Accelerator, recipe: Recipe, device: str) -> None:
    """Gives a Trainer's accelerator the recipe's scaler, and on a CPU the float16 that it has on a GPU."""
    if accelerator.mixed_precision != "fp16":
        return
    accelerator.autocast_handler = AutocastKwargs(enabled=recipe.precision.level == "O1")
    scaler = grad_scaler(device, recipe) or torch.amp.GradScaler(device, enabled=False)
    accelerator.scaler, accelerator.native_amp = scaler, True


class LibraryStepper(Stepper):
    """The optimizer that Trainer creates from its arguments; Adam and chosen implementations are PyTorch's."""

    def __init__(self, arguments: TrainingArguments, *args: Any) -> None:
        self._arguments = arguments
        super().__init__(*args)

    def make_optimizer(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        if isinstance(recipe.optimizer, Adam) or recipe.implementation != "default":
            return super().make_optimizer(recipe, groups)
        kind, arguments = Trainer.get_optimizer_cls_and_kwargs(self._arguments)
        decay = {"weight_decay": self._arguments.weight_decay}
        fused = {"fused": True} if wants_fused(recipe) else {}
        return kind([decay | group for group in groups], **(arguments | fused))


class PlainTrainer(TorchTrainer):
    """A run by PyTorch's loop with the optimizer that Trainer creates."""

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        self.arguments = arguments_of(recipe, device, OPTIMIZERS[mode])
        super().__init__(model, recipe, weights, device, mode)

    def _steppers(self) -> list[Stepper]:
        return steppers(self.recipe, self.slots, partial(LibraryStepper, self.arguments))


class _Values(IterableDataset[Row]):
    """Rows in their order: micro-batches of one value each."""

    def __init__(self, values: Sequence[float], length: int) -> None:
        self._values, self._length = values, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Row]:
        return iter([{"value": value} for value in self._values])


class _Product(nn.Module):
    """Two weights of 1; the loss is the sum of their products with the value."""

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
        length: number of micro-batches that the data report; None for their real number.
        scaler: settings of the loss scaler; if there are any, float16 is requested with autocast off.
        options: further training arguments.
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
        **options: Any,
    ) -> None:
        self._device, self._settings = device, scaler
        arguments = QUIET | {"num_train_epochs": 1, "fp16": scaler is not None, "use_cpu": device == "cpu"}
        super().__init__(
            model=_Product(losses),
            args=TrainingArguments(**(arguments | options)),
            train_dataset=_Values(values, len(values) if length is None else length),
            callbacks=list(callbacks),
            optimizers=(optimizer, None),
        )
        self.remove_callback(PrinterCallback)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        if self._settings is not None:
            scaler = torch.amp.GradScaler(self._device, **{"init_scale": 1024.0, **self._settings})
            self.accelerator.autocast_handler = AutocastKwargs(enabled=False)
            self.accelerator.scaler, self.accelerator.native_amp = scaler, True

    def get_train_dataloader(self) -> DataLoader[Row]:
        return DataLoader(self.train_dataset, batch_size=1)

    def weights(self) -> float:
        """The first weight after `train()`."""
        self.train()
        return float(self.model.weight.detach()[0])


def _static(device: str) -> bool:
    return TrainerAttempt(device, [math.inf], scaler={"growth_factor": 1.0, "backoff_factor": 1.0}).weights() == 1.0


def _two_optimizers(device: str) -> bool:
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    return TrainerAttempt(device, [1.0], optimizer=[torch.optim.SGD([w], lr=0.5) for w in weights]).weights() == 0.5


def _two_losses(device: str) -> bool:
    return TrainerAttempt(device, [1.0], losses=2).weights() == 0.0


def open_window_ends(device: str) -> bool:
    """Returns whether data that end before their reported length give an update of the open window."""
    return TrainerAttempt(device, [1.0, 3.0], length=4, gradient_accumulation_steps=4).weights() == 0.0


def step_is_left_out(device: str) -> bool:
    """Returns whether Trainer skips a window's step if a callback requests the end of training before it."""

    class Stops(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = control.should_epoch_stop = True
            return control

    return TrainerAttempt(device, [1.0], Stops(), scaler={}).weights() == 1.0


def _average(device: str) -> bool:
    """Returns whether a training argument names an average of the weights."""
    del device
    parts = {word for name in TrainingArguments.__dataclass_fields__ for word in name.split("_")}
    return bool(parts & {"ema", "swa", "averaged"})


def bfloat16_is_scaled(device: str) -> bool:
    """Returns whether the accelerator of a Trainer with bf16 has a loss scaler."""
    return TrainerAttempt(device, [1.0], bf16=True).accelerator.scaler is not None


def low_model_is_scaled(device: str) -> bool:
    """Returns whether a fused optimizer of a float16 model gets scaled gradients."""
    trainer = TrainerAttempt(device, [1.0], scaler={}, optim="adamw_torch_fused")
    trainer.model.half()
    return trainer.weights() < 1.0


_PROBES: dict[Capability, Probe] = {
    Capability.STATIC_SCALING: _static,
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.AVERAGE: _average,
}


def guard_trainer(probe: Probe, device: str) -> Attempt:
    """The attempt on a device, with accelerate's state and random streams restored at its end."""
    return guard_probe(probe, device, first_state, seeds_restored, partial(settings.random_apart, device))


class TransformersRun(PlainTrainer):
    """A run whose windows are trained by the loop of `Trainer.train()`.

    The loop ends a window with its last micro-batch. A shorter window is a separate epoch, since only the end of an
    epoch ends a window early. The length of an open window follows from the number of items that it will hold.
    """

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        self.shared_state, self.queue, self.before_step = SharedState(), WorkQueue(), BeforeStep()
        self._remaining, self._scale_before = 0, 1.0
        self._update: Update | None = None
        with self.shared_state.install(), seeds_restored():
            super().__init__(model, recipe, weights, device, mode)
            self.whole = MeanLoss(self.network, model, widen=self.low is not None)
            (stepper,) = self.steppers
            with self.stream.open(keep=False):
                self.trainer = FedTrainer(
                    self.queue,
                    partial(install_scaler, recipe=recipe, device=device),
                    model=self.whole,
                    args=self.arguments,
                    callbacks=[self.before_step],
                    optimizers=(stepper.optimizer, stepper.scheduler),
                )
                self.trainer.remove_callback(PrinterCallback)
        self.scaler = self.trainer.accelerator.scaler if recipe.scaling is not None else None
        self._settings = scaler_settings(self.scaler)
        self.loop = Loop(self.trainer, self.queue)
        weakref.finalize(self, self.queue.close)

    def _make_scaler(self) -> None:
        """None: the scaler is in Trainer's accelerator."""

    @contextmanager
    def _active(self) -> Iterator[None]:
        """A context with the library's and the process's state of this run, in which its loop works."""
        with self.shared_state.install(), seeds_restored(), self.stream.open() if self._draws else nullcontext():
            yield

    def _await_window(self, length: int | None = None) -> None:
        """Makes the loop wait for a window of `length` micro-batches; None: of any length."""
        steps = self.recipe.accumulation
        short = 0 if length is None or length >= steps else length
        steps = max(steps, length or 0)
        if self.loop.runs and (
            length is None or (self.trainer.short, self.arguments.gradient_accumulation_steps) == (short, steps)
        ):
            return
        self.loop.stop()
        self.arguments.gradient_accumulation_steps = steps
        self.loop.begin(short)

    # forward and backward

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _inputs(self, batch: Batch) -> Inputs:
        """The micro-batch as arguments of the model."""
        return self._arguments(self._load(batch))

    def _arguments(self, loaded: DeviceBatch) -> Inputs:
        if self.whole.accepts_loss_kwargs:
            (labels,) = loaded.targets.values()
            return {"inputs": loaded.inputs, "labels": labels}
        return {"inputs": loaded.inputs, "targets": dict(loaded.targets), "count": loaded.items}

    def forward(self, batch: DeviceBatch) -> list[torch.Tensor]:
        with self._active():
            self._await_window()
        options = {"num_items_in_batch": batch.items} if self.whole.accepts_loss_kwargs else {}
        outputs = self.trainer.model_wrapped(**self._arguments(batch), **options)
        self.whole.totals.clear()
        return [outputs["loss"]]

    def _passes(self, window: Window, items: int, scaler: torch.amp.GradScaler | None) -> list[float]:
        trainer = self.trainer
        with self._active():
            self._await_window()
            samples, counted = trainer.get_micro_batches([self._inputs(batch) for batch in window])
            former = getattr(trainer, "current_gradient_accumulation_steps", 1), trainer.accelerator.scaler
            trainer.current_gradient_accumulation_steps = len(samples)
            trainer.accelerator.scaler = scaler or trainer.accelerator.scaler
            for inputs in samples:
                trainer.training_step(trainer.model_wrapped, inputs, counted)
            trainer.current_gradient_accumulation_steps, trainer.accelerator.scaler = former
        return self._take_totals()

    def _take_totals(self) -> list[float]:
        totals = list(self.whole.totals)
        self.whole.totals.clear()
        return totals

    def update(self, window: Window) -> Update:
        if self._remaining:
            return super().update(window)
        piece = WindowPiece([self._inputs(batch) for batch in window], len(window))
        self._send(piece, [batch.items for batch in window], sum(batch.items for batch in window))
        return self.apply()

    def accumulate(self, batch: Batch, items: int) -> float:
        length = 1
        if opens := not self._remaining:
            length = max(1, round(items / batch.items)) if batch.mask is None else self.recipe.accumulation
        totals = self._send(WindowPiece([self._inputs(batch)], length, items if opens else None), [batch.items], items)
        return MicroBatch(totals[0], batch.items).loss

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if discard:
            raise Unsupported(Capability.EXPLICIT_UNSCALE, _ALWAYS_STEPS, guard_trainer(step_is_left_out, self.device))
        accelerator = self.trainer.accelerator
        self.before_step.actions += [accelerator.unscale_gradients] * max(0, (unscale_calls or 0) - 1)
        if inject is not None:
            self.before_step.actions.append(partial(self._add_gradients, inject))
        gradients = [{name: value for name, value in mapping.items() if value is not None} for mapping in window]
        losses = [
            self._sum_products(mapping) if mapping else torch.zeros((), requires_grad=True) for mapping in gradients
        ]
        self._send(WindowPiece([{"fed": loss} for loss in losses], len(window)), [1] * len(window), len(window))
        if self.before_step.errors:
            raise self.before_step.errors.pop()
        return replace(self.apply(), loss=math.nan)

    def _send(self, piece: WindowPiece, counts: list[int], items: int) -> list[float]:
        """Sends micro-batches with these numbers of items to the loop; returns the sums of their losses."""
        with self._active():
            if not self._remaining:
                self._await_window(piece.length)
                self._remaining, self._scale_before = piece.length, self._scale()
            self.loop.send(piece)
        self._remaining -= len(counts)
        totals = self._take_totals()
        for total, count in zip(totals, counts, strict=True):
            self.ledger.add(MicroBatch(total, count), items)
        if not self._remaining:
            self._update = self._read_logged_update()
        return totals

    def _read_logged_update(self) -> Update:
        """The update that the loop has just made or skipped, as Trainer logs it."""
        log, micro = self.trainer.state.log_history[-1], self.ledger.losses()
        self.ledger.empty()
        skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
        good, scale, norm = good_updates(self.scaler), self._scale(), float(log["grad_norm"])
        return Update(log["loss"], micro, self._scale_before, scale, good, skipped, norm, log["learning_rate"])

    def apply(self) -> Update:
        if self._remaining:
            raise Unsupported(Capability.PARTIAL_WINDOW, _ENDS_LATER, guard_trainer(open_window_ends, self.device))
        if self._update is None:
            raise ValueError("apply without any micro-batch before it")
        update, self._update = self._update, None
        return update

    # evaluation and checkpoints

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self._active():
            self._await_window()
        self.whole.eval()
        return self._evaluate(self.trainer.model_wrapped, inputs)

    def save(self, path: Path) -> None:
        if self._remaining:
            raise RuntimeError("Trainer saves a checkpoint after an update, and this window is still open")
        with self.shared_state.install(), seeds_restored(), self.stream.open(keep=False):
            self._await_window()
            self.arguments.output_dir = str(path)
            self.loop.send(Order.SAVE)
        loop = {name: value for name, value in self.loop_state().items() if name != "random"}
        torch.save(loop, path / _LOOP_FILE)

    def restore(self, path: Path) -> None:
        self.loop.discard()
        self._remaining = 0
        with self.shared_state.install(), seeds_restored(), self.stream.open():
            try:
                self.loop.begin(checkpoint=get_last_checkpoint(str(path)) or str(path))
                loop = torch.load(path / _LOOP_FILE, weights_only=True)
            except Exception as error:
                raise ValueError(f"{path} cannot be loaded: {error}") from error
        self.restore_loop_state({**loop, "random": self.stream.states})


class TransformersFramework(StackFramework):
    """Every recipe is trained by one Trainer, whose defaults apply where the recipe fixes nothing.

    Mode "trainer" has Trainer's default implementation of AdamW, the fused one; "trainer-plain" has "adamw_torch". A
    recipe without clipping is `max_grad_norm=0`, and one without a schedule a constant rate.
    """

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION, Capability.LOADED_CHECKPOINT})

    def library_refusals(self) -> Mapping[Capability, str]:
        return {
            Capability.STATIC_SCALING: "Trainer's loop calls GradScaler.update without a scale; no setting keeps the "
            "scale",
            Capability.TWO_OPTIMIZERS: "Trainer takes one optimizer",
            Capability.TWO_LOSSES: "Trainer makes one backward pass through each forward pass",
            Capability.AVERAGE: "Trainer keeps no average of the weights",
        }

    @property
    def takes_any_optimizer(self) -> bool:
        """True in one of the two modes: `TrainingArguments.optim` has no effect on an optimizer from outside."""
        return self.mode == "trainer"

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return {capability: guard_trainer(probe, self.device) for capability, probe in _PROBES.items()}

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> TransformersRun:
        if wants_fused(recipe):
            attempt = guard_trainer(low_model_is_scaled, self.device)
            raise Unsupported(Capability.DYNAMIC_SCALING, LOW_MODEL_SCALED, attempt)
        if recipe.scaling is not None and recipe.precision.label == "O1-bfloat16":
            raise Unsupported(
                Capability.DYNAMIC_SCALING, BFLOAT16_SCALED, guard_trainer(bfloat16_is_scaled, self.device)
            )
        return TransformersRun(model, recipe, weights, self.device, self.mode)

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        with first_state():
            return self.bind(PlainTrainer(model, recipe, weights, self.device, self.mode))

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """The effect of a request for mixed precision in Trainer, without this adapter's additions."""
        with first_state(), seeds_restored(), torch.random.fork_rng(), collect_warnings() as warned:
            asked: dict[str, Any] = {"fp16": True} if format_name == "float16" else {"bf16": True}
            attempt, formats = TrainerAttempt(self.device, [1.0], **asked), list[torch.dtype]()
            attempt.model.inner.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
            attempt.train()
            reported = {"fp16": "float16", "bf16": "bfloat16", "no": "float32"}[attempt.accelerator.mixed_precision]
        return FormatRequest(dtype_name(formats[0]), reported, warned=bool(warned))

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        """A tiny Llama that `from_pretrained` loads with its defaults, trained by AdamW under `bf16=True`.

        The compared weights are those of its last norm, which begin as ones.
        """
        sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = LlamaConfig(vocab_size=16, **sizes, use_cache=False)
        rows = [{"input_ids": row, "labels": row} for row in (torch.arange(8 * updates).view(-1, 8) % 13).tolist()]
        options = {"optim": "adamw_torch", "learning_rate": rate, "bf16": True, "max_steps": updates}
        options["log_level"] = "passive"
        with (
            tempfile.TemporaryDirectory() as folder,
            first_state(),
            seeds_restored(),
            torch.random.fork_rng(),
            collect_warnings() as warned,
        ):
            torch.manual_seed(0)
            LlamaForCausalLM(config).to(getattr(torch, saved)).save_pretrained(folder)
            model = AutoModelForCausalLM.from_pretrained(folder)
            weight = model.model.norm.weight
            loaded, before = weight.dtype, weight.detach().clone().cpu()
            _train_quietly(model, rows, self.device, options)
            moved = weight.detach().cpu() != before
        says_so = any(word in text.lower() for text in warned for word in _WORDS)
        return LoadedRun(dtype_name(loaded), int(moved.sum()), moved.numel(), warned=says_so)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        def train(folder: str, resumes: bool) -> Dropping:
            options = {
                "output_dir": folder,
                "save_strategy": "steps",
                "save_steps": windows,
                "num_train_epochs": EPOCHS,
                "gradient_accumulation_steps": STEPS,
                "train_sampling_strategy": "sequential" if order == "in-order" else "random",
            }
            checkpoint = f"{folder}/checkpoint-{windows}" if resumes else None
            with first_state(), seeds_restored():
                model = Dropping()
                _train_quietly(model, NumberedRows(order), self.device, options, checkpoint)
            return model

        return train_twice(train, windows)


def _train_quietly(
    model: nn.Module, rows: Any, device: str, options: dict[str, Any], checkpoint: str | None = None
) -> None:
    """Trains with these arguments of Trainer, and prints no log."""
    arguments = TrainingArguments(**(QUIET | options | {"use_cpu": device == "cpu"}))
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=checkpoint)


class TrainerCurve(TrainerCallback):
    """Records what `Trainer` logs; `logging_steps=1` logs each step. Its norm is the one before clipping.

    `conformance curves` compares what it writes.

    Args:
        recorder: a `conformance.curves.CurveRecorder`.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Record an entry of the log that has a loss."""
        if logs and "loss" in logs:
            names = {"grad_norm": "gradient_norm", "learning_rate": "learning_rate"}
            series = {name: logs[key] for key, name in names.items() if key in logs}
            self.recorder.step(logs["loss"], step=state.global_step, **series)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write the last entry."""
        self.recorder.close()
