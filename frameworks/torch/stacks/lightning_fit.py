"""One `Trainer.fit` of Lightning, fed micro-batch by micro-batch from another thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import grad_norm

from frameworks.torch.core.layers import Network
from frameworks.torch.training.optimizers import Stepper

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
