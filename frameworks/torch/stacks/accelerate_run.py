"""One training run by `accelerate.Accelerator`, as its guides on migration, accumulation and checkpoints write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import AutocastKwargs, GradScalerKwargs

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.contract import Gradients, Update
from frameworks.torch.core.arrays import whole
from frameworks.torch.stacks.accelerate_state import SharedState
from frameworks.torch.training import checkpoint
from frameworks.torch.training.scaler import dynamic_arguments
from frameworks.torch.training.trainer import TorchTrainer


def accelerator_of(recipe: Recipe, device: str) -> Accelerator:
    """The accelerator that a user makes for a recipe.

    The loss scaler comes with fp16; without float16 operations autocast is switched off by its own setting. On a CPU
    accelerate leaves out both, and they are put where it keeps them on a GPU.
    """
    low, scaling = recipe.precision.level == "O1", recipe.scaling
    precision = "bf16" if low and recipe.precision.format == "bfloat16" else "fp16" if low or scaling else "no"
    handlers: list[Any] = [AutocastKwargs(enabled=low)]
    if precision == "fp16":
        dynamic = dynamic_arguments(scaling) if isinstance(scaling, DynamicScaling) else {"enabled": False}
        handlers.append(GradScalerKwargs(**dynamic))
    accelerator = Accelerator(
        cpu=device == "cpu",
        mixed_precision=precision,
        gradient_accumulation_steps=recipe.accumulation,
        kwargs_handlers=handlers,
    )
    if precision == "fp16" and device == "cpu":
        force_float16(accelerator)
    return accelerator


def force_float16(accelerator: Accelerator) -> None:
    """Gives an accelerator that was asked for fp16 on a CPU the scaler and the autocast that it has on a GPU."""
    settings = accelerator.scaler_handler.to_kwargs() if accelerator.scaler_handler is not None else {}
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", **settings), True


class AccelerateTrainer(TorchTrainer):
    """A run whose loop calls `accumulate`, `backward`, `clip_grad_norm_`, and the prepared optimizers and schedules.

    Micro-batches with a mask weigh by their items, as in the guide on samples of variable size; others give the mean
    loss that the first guides use, which `backward` divides by the accumulation steps.
    """

    def __init__(self, *given: Any) -> None:
        self.turn = SharedState()
        with self.turn.installed():
            super().__init__(*given)
            optimizers = [stepper.optimizer for stepper in self.steppers]
            schedulers = [stepper.scheduler for stepper in self.steppers if stepper.scheduler is not None]
            prepared = self.accelerator.prepare(self.network, *optimizers, *schedulers)
            _, *others = prepared if isinstance(prepared, tuple) else (prepared,)
            self.optimizers, self.schedulers = others[: len(optimizers)], others[len(optimizers) :]
            self.accelerator.register_for_checkpointing(_Loop(self))
            if self.average is not None:
                self.average = self.accelerator.prepare_model(self.average, evaluation_mode=True)
        self._by_items = False

    def prepare(self) -> None:
        self.accelerator = accelerator_of(self.recipe, self.device)

    def _made_scaler(self) -> torch.amp.GradScaler | None:
        return self.accelerator.scaler if self.recipe.scaling is not None else None

    # forward and backward: the prepared network has the precision scope

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _backward(self, losses: list[torch.Tensor], scaler: torch.amp.GradScaler | None) -> None:
        separate = losses if self.recipe.separate_losses else [sum(losses[1:], losses[0])]
        former, self.accelerator.scaler = self.accelerator.scaler, scaler or self.accelerator.scaler
        for index, loss in enumerate(separate):
            self.accelerator.backward(loss, retain_graph=index + 1 < len(separate))
        self.accelerator.scaler = former

    @contextmanager
    def _micro_batch(self, *, last: bool) -> Iterator[None]:
        """The body of the loop that accelerate documents; the update of a whole window is left to `_finish`."""
        with self.accelerator.accumulate(self.network):
            yield
            if not (last and self.accelerator.sync_gradients):
                self._step()

    def _share(self, total: torch.Tensor, items: int) -> torch.Tensor:
        return total * self.recipe.accumulation / items if self._by_items else total / items

    def _fed_share(self, total: torch.Tensor, micro_batches: int) -> torch.Tensor:
        return total

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        self._by_items = batch.mask is not None
        return super()._pass(batch, items if self._by_items else batch.items, scaler)

    def accumulate(self, batch: Batch, items: int) -> float:
        last = len(self.ledger.micro_batches) + 1 >= self.recipe.accumulation
        with self.turn.installed(), self._micro_batch(last=last):
            return super().accumulate(batch, items)

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        with self.turn.installed():
            accelerator = self.accelerator
            former = accelerator.step, accelerator.sync_gradients
            accelerator.step = 0
            try:
                return super()._gradients(window, items)
            finally:
                accelerator.step, accelerator.sync_gradients = former

    # the update

    def apply(self) -> Update:
        with self.turn.installed():
            return super().apply()

    def apply_gradients(self, *window: Gradients, **manual: Any) -> Update:
        with self.turn.installed():
            return super().apply_gradients(*window, **manual)

    def _finish(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        self._end_window()
        manual = unscale_calls or 0
        for _ in range(manual if inject is None else max(1, manual)):
            self.accelerator.unscale_gradients()
        self._add(inject or {})
        norm = None if self.recipe.clip is None else float(whole(self._clip(self.recipe.clip)))
        self._step()
        skipped = all(optimizer.step_was_skipped for optimizer in self.optimizers)
        if self.average is not None and not skipped:
            self.average.update_parameters(self.network)
        return self._report(before, rate, norm, skipped=skipped)

    def _end_window(self) -> None:
        """Ends a window that is shorter than the accumulation steps, as the end of a data loader does."""
        if not self.accelerator.sync_gradients:
            self.accelerator.step, self.accelerator.sync_gradients = 0, True

    def _clip(self, limit: float) -> torch.Tensor:
        return self.accelerator.clip_grad_norm_([slot.tensor for slot in self.slots.values()], limit)

    def _step(self) -> None:
        """The calls that end the loop's body, which act where the window ends."""
        for each in (*self.optimizers, *self.schedulers):
            each.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _discarded(self) -> Update:
        self._end_window()
        return super()._discarded()

    # evaluation and checkpoints

    def save(self, path: Path) -> None:
        with self.turn.installed(), self.stream.drawn(keep=False):
            self.accelerator.save_state(str(path))

    def restore(self, path: Path) -> None:
        with self.turn.installed(), self.stream.drawn():
            try:
                self.accelerator.load_state(str(path))
            except Exception as error:
                raise ValueError(f"{path} cannot be loaded: {error}") from error


class _Loop:
    """State of the user's own loop, registered for checkpoints; random states are the library's part."""

    def __init__(self, run: AccelerateTrainer) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in checkpoint.loop_state(self._run).items() if name != "random"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        checkpoint.go_on(self._run, {**state, "random": self._run.stream.states})
