"""Lightning's Trainer as a framework of the suite, whose `fit` another thread feeds micro-batch by micro-batch."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, callbacks
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities import grad_norm
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import FormatName, Recipe
from frameworks.base import NO_AVERAGE, MicroBatch
from frameworks.contract import Attempt, Capability, DataRun, FormatRequest, Gradients, RowOrder, Unsupported, Update
from frameworks.torch.core.layers import DeviceBatch, Network, parameters_by_name
from frameworks.torch.core.settings import to_array, to_tensor
from frameworks.torch.probes import Probe
from frameworks.torch.stacks.fabric import (
    ASKED,
    NAMES,
    NO_FUSED_CLIPPING,
    NO_STATIC_SCALE,
    clips_fused_and_scaled,
    format_request,
    guard_attempts,
    make_scaled_plugin,
    precision_of,
    quiet,
    require_together,
    without_warnings,
)
from frameworks.torch.stacks.framework import (
    EPOCHS,
    STEPS,
    Dropping,
    StackFramework,
    collect_warnings,
    loader,
    train_twice,
)
from frameworks.torch.training.optimizers import Stepper, averages_of
from frameworks.torch.training.trainer import TorchTrainer

ENDLESS = 2**40
"""Length in micro-batches of an epoch that does not end with a short window."""


@dataclass(eq=False)
class Work:
    """A micro-batch for the training loop.

    Attributes:
        batch: tensors, as a loader yields them.
        loss: function of the batch that `training_step` calls; if it returns None, Lightning skips the backward pass.
        window: number of micro-batches of the window that this one begins; None within a window.
        norm: the gradients' norm before clipping; None if the window does not end here or the run does not clip.
    """

    batch: dict[str, Any]
    loss: Callable[[dict[str, Any]], torch.Tensor | None]
    window: int | None = None
    norm: float | None = None


class _Stopped(Exception):
    """Raised in a fit to end it when the run is closed."""


class WorkQueue:
    """Queues between a run and the thread of its fit, which waits for micro-batches and calls, and reports results.

    Attributes:
        full: number of micro-batches of a whole window.
        current: the micro-batch that the fit trains on now.
    """

    def __init__(self, full: int) -> None:
        self.full = full
        self.current: Work | None = None
        self._next: Work | None = None
        self._orders: SimpleQueue[Work | Callable[[], Any] | None] = SimpleQueue()
        self._results: SimpleQueue[Any] = SimpleQueue()

    def __deepcopy__(self, memo: dict[int, Any]) -> WorkQueue:
        """Returns the same queue: a copy of the module for an average must not get a copy of the queue."""
        return self

    # the run's side

    def ask(self, order: Work | Callable[[], Any]) -> Any:
        """Sends an order and waits for its result; raises its exception."""
        self._orders.put(order)
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """Has the fit end."""
        self._orders.put(None)

    # the fit's side

    def report(self, result: Any = None) -> None:
        self._results.put(result)

    def coming(self) -> Work:
        """The next micro-batch, which stays in the queue; runs the calls that were queued before it."""
        while self._next is None:
            order = self._orders.get()
            if order is None:
                raise _Stopped
            if isinstance(order, Work):
                self._next = order
                break
            try:
                self.report(order())
            except Exception as error:
                self.report(error)
        return self._next

    def take(self) -> Work:
        """Removes the next micro-batch from the queue and returns it."""
        self.current, self._next = self.coming(), None
        return self.current

    def fail(self, error: BaseException) -> None:
        """Answers each further order with the error that ended the fit."""
        self.report(error)
        while self._orders.get() is not None:
            self.report(error)


class _Loader:
    """An iterator over an epoch's micro-batches. It needs no state to resume: the run chooses the next micro-batch."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._length: int | None = None

    def __len__(self) -> int:
        """Waits for the first window. `train_dataloader` must not wait: Lightning patches `DataLoader` around it."""
        if self._length is None:
            window = self._queue.coming().window or self._queue.full
            self._length = window if window < self._queue.full else ENDLESS
        return self._length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self._queue.take().batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class FitModule(LightningModule):
    """A network as Lightning's guide has it, whose losses, data and optimizer are those of a run.

    A window that is shorter than the others is a separate epoch, and ends the one before.

    Attributes:
        loop: the run's own counters, which are saved in a checkpoint and loaded from it.
    """

    def __init__(self, network: Network, queue: WorkQueue, stepper: Stepper, *, clips: bool) -> None:
        super().__init__()
        self.network = network
        self._queue = queue
        self._clips = clips
        self.loop: dict[str, Any] = {}
        self._stepper = weakref.ref(stepper)

    @property
    def stepper(self) -> Stepper:
        """The run's optimizer and schedule; a copy of the module for an average shares them."""
        stepper = self._stepper()
        assert stepper is not None
        return stepper

    def train_dataloader(self) -> _Loader:
        return _Loader(self._queue)

    def configure_optimizers(self) -> Any:
        stepper = self.stepper
        if stepper.scheduler is None:
            return stepper.optimizer
        return {"optimizer": stepper.optimizer, "lr_scheduler": {"scheduler": stepper.scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["loop"] = self.loop

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.loop = checkpoint["loop"]

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor | None:
        work = self._queue.current
        assert work is not None
        return work.loss(batch)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        work = self._queue.current
        assert work is not None
        if self._clips:
            work.norm = float(grad_norm(self.network, 2).get("grad_2.0_norm_total", 0.0))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._queue.current = None
        self._queue.report()
        window = self._queue.coming().window
        self.trainer.should_stop = window is not None and window < self._queue.full

    def on_train_epoch_end(self) -> None:
        self.trainer.should_stop = False


class Fit:
    """A fit in a separate thread, which ends with this object.

    Attributes:
        trainer: Lightning's Trainer.
        task: the module that it trains.
        end: ends the fit and waits for it; called when this object or the process ends.
    """

    def __init__(self, trainer: Trainer, task: FitModule, queue: WorkQueue, file: Path | None = None) -> None:
        self.trainer = trainer
        self.task = task
        self._queue = queue
        self._thread = threading.Thread(
            target=_run, args=(trainer, task, queue, file, torch.get_num_threads()), daemon=True
        )
        self._thread.start()
        self.end = weakref.finalize(self, _end, queue, self._thread)
        self.ask(lambda: None)  # wait until the fit is ready for its first micro-batch

    def ask(self, order: Work | Callable[[], Any]) -> Any:
        """Sends a micro-batch, or a call to run between two, to the fit; raises the error that ended the fit."""
        return self._queue.ask(order)


def _end(queue: WorkQueue, thread: threading.Thread) -> None:
    queue.close()
    if thread is not threading.current_thread():
        thread.join()


def _run(trainer: Trainer, task: FitModule, queue: WorkQueue, file: Path | None, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        trainer.fit(task, ckpt_path=file)
    except _Stopped:
        return
    except BaseException as error:
        queue.fail(error)


BARE: Mapping[str, Any] = {
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
"""Arguments of a Trainer without logger, progress bar, summary, and checkpoints in the working folder."""
FILE = "run.ckpt"
_WINDOW_GOES_ON = (
    "Trainer ends a window with its last micro-batch or with the epoch's, whose number it knows at the start"
)
_BEFORE_2_6 = "EMAWeightAveraging came with Lightning 2.6.0"
_BY_ITSELF = "Trainer unscales gradients itself, after the last backward pass of a window"

Step = Callable[["Tiny", float], Any]


def _sgd(module: Tiny) -> torch.optim.Optimizer:
    return torch.optim.SGD([module.weight], 0.5)


def _mean(module: Tiny, factor: float) -> torch.Tensor:
    return (module.weight * factor).sum()


class Tiny(LightningModule):
    """Two weights, by default 1.0 under SGD of rate 0.5; the loss is their sum times the batch.

    Attributes:
        readings: values that steps record.
    """

    def __init__(
        self, step: Step = _mean, configured: Callable[[Tiny], Any] = _sgd, weight: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2) if weight is None else weight)
        self.readings: list[Any] = []
        self._step = step
        self._configured = configured

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self._step(self, float(batch))

    def configure_optimizers(self) -> Any:
        return self._configured(self)


class _Scheduled(Tiny):
    """Counts the schedule's steps after each update."""

    def __init__(self, frequency: int) -> None:
        super().__init__()
        self._frequency = frequency
        self.stepped: list[bool] = []

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 2.0**-8)
        optimizer.register_step_post_hook(lambda *_: self.stepped.append(True))
        self.schedule = LambdaLR(optimizer, lambda _: 1.0)
        config = {"scheduler": self.schedule, "interval": "step", "frequency": self._frequency}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.stepped) > len(self.readings):
            self.readings.append(self.schedule.last_epoch)


class _Rows(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Dropping()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 2.0**-8)


def fit_module(device: str, module: Tiny, *factors: float, epochs: int = 1, **options: Any) -> Trainer:
    """A Trainer that has trained the module on these batches, each epoch."""
    quiet()
    with without_warnings():
        trainer = Trainer(accelerator=device, max_epochs=epochs, **BARE, **options)
        trainer.fit(module, DataLoader(torch.tensor(factors), batch_size=None))
    return trainer


def _is_at(weight: torch.Tensor, value: float) -> bool:
    return bool((weight == value).all())


def _keeps_scale(device: str) -> bool:
    """Returns whether a constant scale stays the same after an overflow."""
    plugin = make_scaled_plugin(MixedPrecision, device, growth_interval=2**31 - 1)
    fit_module(device, Tiny(), float("inf"), plugins=plugin)
    return bool(plugin.scaler.get_scale() == 8.0)


def _unscaled_manually(times: int, device: str) -> bool:
    """Returns whether a step can follow after gradients were unscaled by hand behind the backward pass."""
    module, plugin = Tiny(), make_scaled_plugin(MixedPrecision, device)

    def unscale() -> None:
        for _ in range(times):
            plugin.scaler.unscale_(module.optimizers().optimizer)

    module.on_after_backward = unscale
    fit_module(device, module, 1.0, plugins=plugin)
    return _is_at(module.weight, 0.5)


def _two_optimizers(device: str) -> bool:
    module = Tiny(configured=lambda own: [torch.optim.SGD([own.weight], 0.5) for _ in range(2)])
    fit_module(device, module, 1.0)
    return _is_at(module.weight, 0.0)


def _two_losses(device: str) -> bool:
    """Returns whether each of two losses that a step returns gets a backward pass."""
    module = Tiny(lambda module, factor: [_mean(module, factor), _mean(module, factor)])
    fit_module(device, module, 1.0)
    return _is_at(module.weight, 0.0)


def ends_a_window_early(device: str = "cpu") -> bool:
    """Returns whether a return value or an attribute set in a step can end a window before its last micro-batch."""

    def step(module: Tiny, factor: float) -> torch.Tensor:
        module.trainer.should_stop = True
        return _mean(module, factor)

    module = Tiny(step)
    fit_module(device, module, 1.0, 1.0, 1.0, accumulate_grad_batches=2)
    return not _is_at(module.weight, 1.0)


def clips_fused(device: str) -> bool:
    """Returns whether the scaled gradients of a fused optimizer are clipped."""
    module = Tiny(configured=lambda own: torch.optim.SGD([own.weight], 0.5, fused=True))
    fit_module(device, module, 8.0, gradient_clip_val=1.0, plugins=make_scaled_plugin(MixedPrecision, device))
    return float((1.0 - module.weight.detach()).norm()) < 0.501


def _average(device: str) -> bool:
    module = Tiny()
    fit_module(device, module, 1.0, 2.0, callbacks=[callbacks.EMAWeightAveraging(decay=0.5)])
    return _is_at(module.weight, 0.0)  # the mean of the weights 0.5 and -0.5


_PROBES: dict[Capability, Probe] = {
    Capability.STATIC_SCALING: _keeps_scale,
    Capability.EXPLICIT_UNSCALE: partial(_unscaled_manually, 1),
    Capability.SECOND_UNSCALE: partial(_unscaled_manually, 2),
    Capability.TWO_OPTIMIZERS: _two_optimizers,
    Capability.TWO_LOSSES: _two_losses,
    Capability.AVERAGE: _average,
}


def keeps_float64_head(label: str, device: str) -> bool:
    """Returns whether a model's float64 weights stay float64 at a level."""
    module = Tiny()
    module.head = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    fit_module(device, module, 1.0, precision=NAMES[label])
    return bool(module.head.dtype == torch.float64)


def trainer_scales(precision: Any, device: str) -> bool:
    """Returns whether the Trainer's bf16-mixed takes a loss scaler, or another precision of it makes one."""
    if precision == "bf16-mixed":
        MixedPrecision(precision, device, torch.amp.GradScaler(device))
        return True
    plugin = fit_module(device, Tiny(), 1.0, precision=precision).precision_plugin
    return getattr(plugin, "scaler", None) is not None


class Float32ScaledPrecision(MixedPrecision):
    """Loss scaling without autocast; the Trainer's own precisions scale only under float16 autocast."""

    def autocast_context_manager(self) -> torch.autocast:
        return torch.autocast(self.device, enabled=False)


class LightningTrainer(TorchTrainer):
    """A run in one fit. Lightning ends a window with its last micro-batch, so `apply` only reports the update.

    `accumulate` without `update` assumes that all micro-batches of the window have the first one's size.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._next_length: int | None = None
        self._remaining = 0
        self._total = 0.0
        self._norm: float | None = None
        self._opened = (1.0, 0.0, 0)
        self._fit = self._begin()

    def _begin(self, file: Path | None = None) -> Fit:
        """A fit of the run's network, resumed from a checkpoint if there is one."""
        recipe, stepper, queue = self.recipe, self.steppers[0], WorkQueue(self.recipe.accumulation)
        self._ema = None if recipe.average is None else callbacks.EMAWeightAveraging(decay=recipe.average)
        quiet()
        trainer = Trainer(
            accelerator=self.device,
            max_epochs=-1,
            accumulate_grad_batches=recipe.accumulation,
            gradient_clip_val=recipe.clip,
            reload_dataloaders_every_n_epochs=1,
            limit_val_batches=0,
            callbacks=[] if self._ema is None else [self._ema],
            **BARE,
            **precision_of(recipe, self.device, self.scaler, MixedPrecision, Float32ScaledPrecision),
        )
        task = FitModule(self.network, queue, stepper, clips=recipe.clip is not None)
        return Fit(trainer, task, queue, file)

    def _low_format(self) -> torch.dtype | None:
        return None

    def _make_average(self) -> AveragedModel | None:
        return None

    @property
    def _plugin(self) -> Precision:
        return self._fit.trainer.precision_plugin

    def autocast(self) -> AbstractContextManager[None]:
        return self._plugin.forward_context()

    def _load(self, batch: Batch) -> DeviceBatch:
        loaded = super()._load(batch)
        inputs, targets = self._plugin.convert_input((loaded.inputs, dict(loaded.targets)))
        return replace(loaded, inputs=inputs, targets=targets)

    # the training loop

    def update(self, window: Window) -> Update:
        self._check_length(len(window))
        self._next_length = len(window)
        return super().update(window)

    def accumulate(self, batch: Batch, items: int) -> float:
        if self._next_length is None:
            self._next_length = (
                min(self.recipe.accumulation, max(1, round(items / batch.items))) if batch.items else None
            )
        self._train(self._load(batch), self._next_length)
        return self.ledger.add(MicroBatch(self._total, batch.items), items)

    def _train(self, loaded: DeviceBatch, length: int | None) -> None:
        def loss(batch: dict[str, Any]) -> torch.Tensor:
            with self.stream.open() if self._draws else nullcontext(), self.activations.saving():
                sums = self._losses(batch["inputs"], batch["targets"])
            total = sum(sums[1:], sums[0])
            self._total = total.item()
            return total / loaded.items

        self._send(Work({"inputs": loaded.inputs, "targets": dict(loaded.targets)}, loss), length)

    def _send(self, work: Work, length: int | None) -> None:
        """Sends a micro-batch to the fit; if no window is open, it is the first one of a window of this length."""
        if not self._remaining:
            self._remaining = work.window = length or self.recipe.accumulation
            self._opened = (self._scale(), self.steppers[0].learning_rate, self.steppers[0].applied)
        self._next_length = None
        self._fit.ask(work)
        self._remaining -= 1
        self._norm = work.norm

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        if self._remaining:
            raise Unsupported(Capability.PARTIAL_WINDOW, _WINDOW_GOES_ON, ends_a_window_early)
        before, rate, applied = self._opened
        return self._report(before, rate, self._norm, skipped=self.steppers[0].applied == applied)

    def _require_manual(self, unscales: bool) -> None:
        raise self.refusal(Capability.EXPLICIT_UNSCALE)

    def _feed_window(self, window: Sequence[Gradients]) -> None:
        self._check_length(len(window))
        for mapping in window:
            self._send(Work({}, partial(self._fed_loss, mapping)), len(window))

    def _fed_loss(self, gradients: Gradients, _: Mapping[str, Any]) -> torch.Tensor | None:
        """A loss with these gradients; None if there are none, so that the step has no backward pass."""
        present = {name: value for name, value in gradients.items() if value is not None}
        return self._sum_products(present) if present else None

    def _check_length(self, length: int) -> None:
        if length > self.recipe.accumulation:
            raise ValueError(f"{length} micro-batches are more than one window of {self.recipe.accumulation}")

    def _passes(self, window: Window, items: int, scaler: torch.amp.GradScaler | None) -> list[float]:
        """Runs a window like the training loop: each loss is its micro-batch's mean over the window's length."""
        return [self._pass(batch, batch.items * len(window), scaler) for batch in window]

    # readings

    def _averages(self) -> dict[str, Array]:
        average = None if self._ema is None else self._ema._average_model
        return {} if average is None else averages_of(parameters_by_name(self.model, average.module.network), average)

    def accumulator(self) -> dict[str, Array]:
        """The gradients of the window; Lightning drops them when the next one begins."""
        return self._read_gradients() if self._remaining else {}

    def predict(self, inputs: Array) -> dict[str, Array]:
        self.network.eval()
        result = self._evaluate(self._compute_outputs, inputs)
        self.network.train()
        return result

    def _compute_outputs(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """The network's outputs, from inputs as Trainer converts them for its precision."""
        return self.network(self._plugin.convert_input(inputs))

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        if self._ema is None:
            raise ValueError(NO_AVERAGE)
        self._ema.on_validation_epoch_start(self._fit.trainer, self._fit.task)
        try:
            return self.predict(inputs)
        finally:
            self._ema.on_validation_epoch_end(self._fit.trainer, self._fit.task)

    # the whole run

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._fit.task.loop = self.loop_state() | {"left": self._remaining, "opened": self._opened, "random": {}}
        self._fit.ask(lambda: self._fit.trainer.save_checkpoint(path / FILE))

    def restore(self, path: Path) -> None:
        former, ema = self._fit, self._ema
        try:
            self._fit = self._begin(path / FILE)
        except Exception as error:
            self._ema = ema
            raise ValueError(f"{path / FILE} cannot be loaded: {error}") from error
        former.end()
        loop = self._fit.task.loop
        self.restore_loop_state(loop | {"random": self.stream.states})
        self._remaining, self._opened = loop["left"], loop["opened"]


class LightningFramework(StackFramework):
    """Lightning's Trainer with automatic optimization: one fit for each run."""

    of_library = frozenset(
        {
            Capability.LIBRARY_REQUESTS,
            Capability.DATA_POSITION,
            Capability.SCHEDULE_FREQUENCY,
            Capability.STEP_HOOK,
            Capability.MANUAL_STEP,
        }
    )

    def library_refusals(self) -> Mapping[Capability, str]:
        averages = {} if hasattr(callbacks, "EMAWeightAveraging") else {Capability.AVERAGE: _BEFORE_2_6}
        return averages | {
            Capability.STATIC_SCALING: NO_STATIC_SCALE,
            Capability.EXPLICIT_UNSCALE: _BY_ITSELF,
            Capability.SECOND_UNSCALE: _BY_ITSELF,
            Capability.TWO_OPTIMIZERS: "automatic optimization has one optimizer",
            Capability.TWO_LOSSES: "automatic optimization goes backward through one loss, that of training_step",
        }

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        return guard_attempts(_PROBES, self.device)

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """The effect of a request for mixed precision in the Trainer, without this adapter's plugin."""

        def product(module: Tiny, factor: float) -> torch.Tensor:
            y = torch.full((2, 2), factor, device=module.device) @ module.weight
            module.readings.append(y.dtype)
            return y.sum()

        module = Tiny(product)
        with collect_warnings() as warned:
            trainer = fit_module(self.device, module, 1.0, precision=ASKED[format_name])
        return format_request(module.readings[0], trainer.precision, warned)

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        def train(folder: str, resumes: bool) -> Dropping:
            saving = callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=windows, save_top_k=-1)
            module = _Rows()
            trainer = Trainer(
                accelerator=self.device,
                max_epochs=EPOCHS,
                accumulate_grad_batches=STEPS,
                callbacks=[] if resumes else [saving],
                **{**BARE, "enable_checkpointing": not resumes},
            )
            trainer.fit(module, loader(order), ckpt_path=f"{folder}/step={windows}.ckpt" if resumes else None)
            return module.model

        quiet()
        return train_twice(train, windows)

    def count_schedule_steps(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        """The steps after each update, of epochs that are as long as the first one.

        Raises:
            ValueError: the epochs differ in length.
        """
        if len(set(epochs)) != 1:
            raise ValueError(f"epochs: got {list(epochs)}, want the same length for all")
        module, factors = _Scheduled(frequency), [1.0] * epochs[0]
        fit_module(self.device, module, *factors, epochs=len(epochs), accumulate_grad_batches=accumulation)
        return tuple(module.readings)

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        """Clips by the calls of Lightning's guide to manual optimization."""
        tensor = to_tensor(gradient, self.device)

        def step(module: Tiny, _: float) -> None:
            optimizer: Any = module.optimizers()
            optimizer.zero_grad()
            module.manual_backward((module.weight * tensor).sum())
            module.clip_gradients(optimizer, gradient_clip_val=limit, gradient_clip_algorithm="norm")
            optimizer.step()

        module = Tiny(step, lambda own: torch.optim.SGD([own.weight], 1.0), torch.zeros_like(tensor))
        module.automatic_optimization = False
        fit_module(self.device, module, 1.0, plugins=make_scaled_plugin(MixedPrecision, self.device, init_scale=scale))
        return to_array(-module.weight)

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        tensor = to_tensor(gradient, self.device)
        module = Tiny(
            lambda own, _: (own.weight * tensor).sum(),
            lambda own: torch.optim.SGD([own.weight], 0.5, fused=fused),
            torch.ones_like(tensor),
        )
        module.on_before_optimizer_step = lambda _: module.readings.append(module.weight.grad.clone())
        fit_module(self.device, module, 1.0, plugins=make_scaled_plugin(MixedPrecision, self.device, init_scale=scale))
        return to_array(module.readings[0])

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> LightningTrainer:
        require_together(model, recipe, keeps_float64_head, trainer_scales, self.device)
        if clips_fused_and_scaled(recipe):
            raise Unsupported(Capability.CLIP, NO_FUSED_CLIPPING, partial(clips_fused, self.device))
        return LightningTrainer(model, recipe, weights, self.device, self.mode)


class LightningCurve(callbacks.Callback):
    """Records every batch that ends with an update.

    `conformance curves` compares what it writes.

    Args:
        recorder: a `conformance.curves.CurveRecorder`.
    """

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.norm: torch.Tensor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch the first optimizer, and the scaler if there is one."""
        self.recorder.watch(trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Take the norm before Lightning clips."""
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        self.norm = torch.nn.utils.get_total_norm(gradients)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record the batch if it ended a window."""
        if self.norm is not None:
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
            self.recorder.step(loss, batch=batch, gradient_norm=self.norm)
            self.norm = None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the last batch."""
        self.recorder.close()
