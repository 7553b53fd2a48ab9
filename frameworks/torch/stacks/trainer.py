"""PyTorch trained by `transformers.Trainer`, and one training run."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import PrinterCallback
from transformers.trainer_utils import get_last_checkpoint

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import FormatName, Recipe
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
from frameworks.torch.core.losses import DeviceBatch
from frameworks.torch.stacks import trainer_data, trainer_probes
from frameworks.torch.stacks.accelerate_state import SharedState
from frameworks.torch.stacks.framework import StackFramework
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
from frameworks.torch.stacks.trainer_parts import (
    OPTIMIZERS,
    LibraryStepper,
    MeanLoss,
    PlainTrainer,
    arguments_of,
    force_float16,
)
from frameworks.torch.training import checkpoint
from frameworks.torch.training.optimizers import Stepper, steppers
from frameworks.torch.training.scaler import good_updates, scaler_settings
from frameworks.torch.training.trainer import TorchTrainer

_LOOP_FILE = "loop.pt"
"""What the user saves next to Trainer's files: the state of no part of Trainer's."""
_ALWAYS_STEPS = "Trainer steps the optimizer at the end of every window, and no callback leaves the step out"
_ENDS_LATER = (
    "Trainer ends a window early only at the end of its data loader, whose length it reads before the first batch"
)


class TransformersRun(TorchTrainer):
    """A run whose windows are trained by the loop of `Trainer.train()`.

    The loop ends a window by itself, with its last micro-batch. A shorter window is an epoch of its own, since only
    the end of an epoch ends a window early; how long an open window will be follows from the items that it will hold.
    """

    def __init__(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str, mode: str
    ) -> None:
        self.turn, self.desk, self.before_step = SharedState(), WorkQueue(), BeforeStep()
        self._left, self._before = 0, 1.0
        self._ended: Update | None = None
        with self.turn.installed(), seeds_restored():
            self.arguments = arguments_of(recipe, device, OPTIMIZERS[mode])
            super().__init__(model, recipe, weights, device, mode)
            self.whole = MeanLoss(self.network, model, widen=self.low is not None)
            (stepper,) = self.steppers
            with self.stream.drawn(keep=False):
                self.trainer = FedTrainer(
                    self.desk,
                    partial(force_float16, recipe=recipe, device=device),
                    model=self.whole,
                    args=self.arguments,
                    callbacks=[self.before_step],
                    optimizers=(stepper.optimizer, stepper.scheduler),
                )
                self.trainer.remove_callback(PrinterCallback)
        self.scaler = self.trainer.accelerator.scaler if recipe.scaling is not None else None
        self._settings = scaler_settings(self.scaler)
        self.loop = Loop(self.trainer, self.desk)
        weakref.finalize(self, self.desk.close)

    def _steppers(self) -> list[Stepper]:
        return steppers(self.recipe, self.slots, partial(LibraryStepper, self.arguments))

    def _made_scaler(self) -> None:
        """Trainer's accelerator has it."""

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The library's and the process's state of this run, while its loop works."""
        with self.turn.installed(), seeds_restored(), self.stream.drawn() if self._draws else nullcontext():
            yield

    def _ready(self, length: int | None = None) -> None:
        """Has the loop wait for a window of so many micro-batches; None: of any length."""
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
        with self._working():
            self._ready()
        given = {"num_items_in_batch": batch.items} if self.whole.accepts_loss_kwargs else {}
        outputs = self.trainer.model_wrapped(**self._arguments(batch), **given)
        self.whole.totals.clear()
        return [outputs["loss"]]

    def _passes(self, window: Window, items: int, scaler: torch.amp.GradScaler | None) -> list[float]:
        trainer = self.trainer
        with self._working():
            self._ready()
            samples, counted = trainer.counted([self._inputs(batch) for batch in window])
            former = getattr(trainer, "current_gradient_accumulation_steps", 1), trainer.accelerator.scaler
            trainer.current_gradient_accumulation_steps = len(samples)
            trainer.accelerator.scaler = scaler or trainer.accelerator.scaler
            for inputs in samples:
                trainer.training_step(trainer.model_wrapped, inputs, counted)
            trainer.current_gradient_accumulation_steps, trainer.accelerator.scaler = former
        return self._taken()

    def _taken(self) -> list[float]:
        totals = list(self.whole.totals)
        self.whole.totals.clear()
        return totals

    def update(self, window: Window) -> Update:
        if self._left:
            return super().update(window)
        piece = WindowPiece([self._inputs(batch) for batch in window], len(window))
        self._hand(piece, [batch.items for batch in window], sum(batch.items for batch in window))
        return self.apply()

    def accumulate(self, batch: Batch, items: int) -> float:
        length = 1
        if opens := not self._left:
            length = max(1, round(items / batch.items)) if batch.mask is None else self.recipe.accumulation
        totals = self._hand(WindowPiece([self._inputs(batch)], length, items if opens else None), [batch.items], items)
        return MicroBatch(totals[0], batch.items).loss

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if discard:
            raise Unsupported(
                Capability.EXPLICIT_UNSCALE,
                _ALWAYS_STEPS,
                trainer_probes.alone(trainer_probes.step_is_left_out, self.device),
            )
        accelerator = self.trainer.accelerator
        self.before_step.actions += [accelerator.unscale_gradients] * max(0, (unscale_calls or 0) - 1)
        if inject is not None:
            self.before_step.actions.append(partial(self._add, inject))
        given = [{name: value for name, value in each.items() if value is not None} for each in window]
        losses = [self._fed(each) if each else torch.zeros((), requires_grad=True) for each in given]
        self._hand(WindowPiece([{"fed": loss} for loss in losses], len(window)), [1] * len(window), len(window))
        if self.before_step.errors:
            raise self.before_step.errors.pop()
        return replace(self.apply(), loss=math.nan)

    def _hand(self, piece: WindowPiece, counts: list[int], items: int) -> list[float]:
        """Has the loop train micro-batches of so many items each; the sums of their losses."""
        with self._working():
            if not self._left:
                self._ready(piece.length)
                self._left, self._before = piece.length, self._scale()
            self.loop.hand(piece)
        self._left -= len(counts)
        totals = self._taken()
        for total, count in zip(totals, counts, strict=True):
            self.ledger.add(MicroBatch(total, count), items)
        if not self._left:
            self._ended = self._logged()
        return totals

    def _logged(self) -> Update:
        """The update that the loop has just made or skipped, as Trainer logs it."""
        log, micro = self.trainer.state.log_history[-1], self.ledger.losses()
        self.ledger.empty()
        skipped = bool(self.trainer.accelerator.optimizer_step_was_skipped)
        good, scale, norm = good_updates(self.scaler), self._scale(), float(log["grad_norm"])
        return Update(log["loss"], micro, self._before, scale, good, skipped, norm, log["learning_rate"])

    def apply(self) -> Update:
        if self._left:
            raise Unsupported(
                Capability.PARTIAL_WINDOW,
                _ENDS_LATER,
                trainer_probes.alone(trainer_probes.open_window_ends, self.device),
            )
        if self._ended is None:
            raise ValueError("apply without any micro-batch before it")
        ended, self._ended = self._ended, None
        return ended

    # evaluation and checkpoints

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self._working():
            self._ready()
        self.whole.eval()
        return self._evaluated(self.trainer.model_wrapped, inputs)

    def save(self, path: Path) -> None:
        if self._left:
            raise RuntimeError("Trainer saves a checkpoint after an update, and this window is still open")
        with self.turn.installed(), seeds_restored(), self.stream.drawn(keep=False):
            self._ready()
            self.arguments.output_dir = str(path)
            self.loop.hand(Order.SAVE)
        loop = {name: value for name, value in checkpoint.loop_state(self).items() if name != "random"}
        torch.save(loop, path / _LOOP_FILE)

    def restore(self, path: Path) -> None:
        self.loop.discard()
        self._left = 0
        with self.turn.installed(), seeds_restored(), self.stream.drawn():
            try:
                self.loop.begin(checkpoint=get_last_checkpoint(str(path)) or str(path))
                loop = torch.load(path / _LOOP_FILE, weights_only=True)
            except Exception as error:
                raise ValueError(f"{path} cannot be loaded: {error}") from error
        checkpoint.go_on(self, {**loop, "random": self.stream.states})


class TransformersFramework(StackFramework):
    """Every recipe is trained by one Trainer, whose defaults hold for what the recipe does not fix.

    Mode "trainer" has Trainer's default implementation of AdamW, the fused one; "trainer-plain" has "adamw_torch". A
    recipe without clipping is `max_grad_norm=0`, and one without a schedule a constant rate.
    """

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION, Capability.LOADED_CHECKPOINT})

    def refused(self) -> Mapping[Capability, str]:
        return trainer_probes.REFUSED

    @property
    def takes_any_optimizer(self) -> bool:
        """True in one of the two modes: `TrainingArguments.optim` has no effect on an optimizer from outside."""
        return self.mode == "trainer"

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return trainer_probes.attempts(self.device)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> TransformersRun:
        trainer_probes.require_scaling(recipe, self.device)
        return TransformersRun(model, recipe, weights, self.device, self.mode)

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        return self.bound(PlainTrainer(model, recipe, weights, self.device, self.mode))

    def requested(self, format_name: FormatName) -> FormatRequest:
        return trainer_data.requested(format_name, self.device)

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        return trainer_data.loaded_run(saved, updates, rate, self.device)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        return trainer_data.resumed_epoch(order, windows, self.device)
