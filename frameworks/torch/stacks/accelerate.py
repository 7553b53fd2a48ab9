"""PyTorch trained by accelerate, and attempts with accelerate's own calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import AutocastKwargs, GradScalerKwargs

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import DynamicScaling, FormatName, Recipe
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, Gradients, RowOrder, Unsupported, Update
from frameworks.torch.core.settings import dtype_name, random_apart, whole
from frameworks.torch.probes import guard_probe
from frameworks.torch.stacks.framework import (
    EPOCHS,
    ROWS,
    STEPS,
    Dropping,
    StackFramework,
    collect_warnings,
    loader,
    train_twice,
)
from frameworks.torch.training.optimizers import dynamic_arguments
from frameworks.torch.training.trainer import TorchTrainer

NO_STATIC_SCALE = "accelerate calls GradScaler.update without a scale, and no setting keeps the scale"
BFLOAT16_SCALED = "accelerate's loss scaler comes with mixed_precision='fp16', and its bfloat16 has none"
_SHARED: tuple[dict[str, Any], ...] = (
    PartialState._shared_state,
    AcceleratorState._shared_state,
    GradientState._shared_state,
)
"""State shared by all accelerators of a process: device, precision, accumulation steps, and the update flag."""


class SharedState:
    """The shared state of one run's accelerator.

    A second `Accelerator` changes the accumulation steps of the first, and refuses another precision, so the runs of a
    process take turns.
    """

    def __init__(self) -> None:
        self._own: list[dict[str, Any]] = [{} for _ in _SHARED]

    @contextmanager
    def install(self) -> Iterator[None]:
        """Within the context, the process has this run's state; nested contexts of one run are one."""
        others = [dict(shared) for shared in _SHARED]
        _write(self._own)
        try:
            yield
        finally:
            self._own = [dict(shared) for shared in _SHARED]
            _write(others)


def first_state() -> AbstractContextManager[None]:
    """A context in which the process has no accelerator yet."""
    return SharedState().install()


def _write(states: list[dict[str, Any]]) -> None:
    for shared, state in zip(_SHARED, states, strict=True):
        shared.clear()
        shared.update(state)


def accelerator_of(recipe: Recipe, device: str) -> Accelerator:
    """The accelerator that a user makes for a recipe.

    The loss scaler comes with fp16; without float16 operations autocast is switched off by its own setting. On a CPU
    accelerate creates neither, so this function sets the attributes that hold them on a GPU.
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

    def __init__(self, *args: Any) -> None:
        self.shared_state = SharedState()
        with self.shared_state.install():
            super().__init__(*args)
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

    def _make_scaler(self) -> torch.amp.GradScaler | None:
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
        """The body of the loop that accelerate documents; the update of a whole window is left to `_make_update`."""
        with self.accelerator.accumulate(self.network):
            yield
            if not (last and self.accelerator.sync_gradients):
                self._step()

    def _normalise(self, total: torch.Tensor, items: int) -> torch.Tensor:
        return total * self.recipe.accumulation / items if self._by_items else total / items

    def _normalise_fed(self, total: torch.Tensor, micro_batches: int) -> torch.Tensor:
        return total

    def _pass(self, batch: Batch, items: int, scaler: torch.amp.GradScaler | None) -> float:
        self._by_items = batch.mask is not None
        return super()._pass(batch, items if self._by_items else batch.items, scaler)

    def accumulate(self, batch: Batch, items: int) -> float:
        last = len(self.ledger.micro_batches) + 1 >= self.recipe.accumulation
        with self.shared_state.install(), self._micro_batch(last=last):
            return super().accumulate(batch, items)

    def _gradients(self, window: Window, items: int) -> dict[str, Array]:
        with self.shared_state.install():
            accelerator = self.accelerator
            former = accelerator.step, accelerator.sync_gradients
            accelerator.step = 0
            try:
                return super()._gradients(window, items)
            finally:
                accelerator.step, accelerator.sync_gradients = former

    # the update

    def apply(self) -> Update:
        with self.shared_state.install():
            return super().apply()

    def apply_gradients(self, *window: Gradients, **manual: Any) -> Update:
        with self.shared_state.install():
            return super().apply_gradients(*window, **manual)

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        before, rate = self._scale(), self.steppers[0].learning_rate
        self._end_window()
        manual = unscale_calls or 0
        for _ in range(manual if inject is None else max(1, manual)):
            self.accelerator.unscale_gradients()
        self._add_gradients(inject or {})
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
        """Makes the calls at the end of the loop's body. They take effect only at the end of a window."""
        for stepper in (*self.optimizers, *self.schedulers):
            stepper.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def _discard_update(self) -> Update:
        self._end_window()
        return super()._discard_update()

    # evaluation and checkpoints

    def save(self, path: Path) -> None:
        with self.shared_state.install(), self.stream.open(keep=False):
            self.accelerator.save_state(str(path))

    def restore(self, path: Path) -> None:
        with self.shared_state.install(), self.stream.open():
            try:
                self.accelerator.load_state(str(path))
            except Exception as error:
                raise ValueError(f"{path} cannot be loaded: {error}") from error


class _Loop:
    """State of the user's own loop, registered for checkpoints. The library saves random states."""

    def __init__(self, run: AccelerateTrainer) -> None:
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self._run.loop_state().items() if name != "random"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._run.restore_loop_state({**state, "random": self._run.stream.states})


class AccelerateFramework(StackFramework):
    """Every recipe is trained by the loop that accelerate documents, with one accelerator for each run."""

    of_library = frozenset({Capability.LIBRARY_REQUESTS, Capability.DATA_POSITION})

    def library_refusals(self) -> Mapping[Capability, str]:
        return {Capability.STATIC_SCALING: NO_STATIC_SCALE}

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        apart = partial(random_apart, self.device)
        return {Capability.STATIC_SCALING: guard_probe(_keeps_scale, self.device, first_state, apart)}

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> AccelerateTrainer:
        if recipe.scaling is not None and recipe.precision.label == "O1-bfloat16":
            attempt = partial(_bfloat16_is_scaled, self.device)
            raise Unsupported(Capability.DYNAMIC_SCALING, BFLOAT16_SCALED, attempt)
        return AccelerateTrainer(model, recipe, weights, self.device, self.mode)

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """The effect of a request for mixed precision in accelerate, without this adapter's additions."""
        asked = {"float16": "fp16", "bfloat16": "bf16"}[format_name]
        with first_state(), collect_warnings() as warned:
            accelerator = Accelerator(cpu=self.device == "cpu", mixed_precision=asked)
            layer, formats = torch.nn.Linear(2, 2), list[torch.dtype]()
            layer.register_forward_hook(lambda _layer, _inputs, output: formats.append(output.dtype))
            model = accelerator.prepare(torch.nn.Sequential(layer))
            model(torch.ones(1, 2, device=accelerator.device))
            reported = {"fp16": "float16", "bf16": "bfloat16", "no": "float32"}[accelerator.mixed_precision]
        return FormatRequest(dtype_name(formats[0]), reported, warned=bool(warned))

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        """The uninterrupted and the resumed run, as written in the guide on checkpoints."""

        def train(folder: str, resumes: bool) -> Dropping:
            with first_state():
                torch.manual_seed(1 + resumes)
                return _train_epochs(order, windows * STEPS, folder, self.device, resumes=resumes)

        return train_twice(train, windows)


def _keeps_scale(device: str) -> bool:
    """Returns whether an overflow skips the update and keeps a constant scale, and the next update is applied."""
    settings = GradScalerKwargs(init_scale=1024.0, growth_factor=1.0, backoff_factor=1.0)
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="fp16", kwargs_handlers=[settings])
    if device == "cpu":
        force_float16(accelerator)
    weight, weights = torch.ones(2, device=device, requires_grad=True), []
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.5))
    for value in (math.inf, 1.0):
        accelerator.backward((weight * value).sum())
        optimizer.step()
        optimizer.zero_grad()
        weights.append(weight[0].item())
    return weights == [1.0, 0.5] and accelerator.scaler.get_scale() == 1024.0


def _bfloat16_is_scaled(device: str) -> bool:
    """Returns whether an accelerator with bf16 has a loss scaler."""
    with first_state():
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16", kwargs_handlers=[GradScalerKwargs()])
        return accelerator.scaler is not None


def _train_epochs(order: RowOrder, saved_after: int, folder: str, device: str, *, resumes: bool) -> Dropping:
    """Trains with a checkpoint after `saved_after` rows of all epochs, or resumes from that checkpoint."""
    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=STEPS)
    model = Dropping()
    model, optimizer, rows = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader(order))
    if resumes:
        accelerator.load_state(folder)
    model.train()
    for epoch in range(saved_after // ROWS if resumes else 0, EPOCHS):
        skipped = saved_after % ROWS if resumes and epoch == saved_after // ROWS else 0
        rows.set_epoch(epoch)
        for number, row in enumerate(accelerator.skip_first_batches(rows, skipped) if skipped else rows, skipped + 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(**row)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if not resumes and epoch * ROWS + number == saved_after:
                accelerator.save_state(folder)
    return accelerator.unwrap_model(model)
