"""`transformers.Trainer` in a separate thread, whose data loader waits for the next window."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback

Inputs = dict[str, Any]
"""Arguments of a model's forward pass by name."""


@dataclass(frozen=True)
class WindowPiece:
    """Micro-batches for the loop: a whole window, or the next part of one whose other parts come later.

    Attributes:
        inputs: model arguments of each micro-batch.
        length: number of micro-batches in the whole window.
        items: number of items in the whole window; None: the library counts them.
    """

    inputs: Sequence[Inputs]
    length: int
    items: int | None = None


class _Closed(BaseException):
    """Raised in the waiting loop when the run is closed."""


class Order(Enum):
    """Orders for the loop at the end of a window, instead of another window."""

    SAVE, STOP, CLOSE = range(3)


class WorkQueue:
    """Hands pieces to the loop; one side works while the other waits."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | bool] = SimpleQueue()

    def send(self, order: WindowPiece | Order) -> bool:
        """Gives the loop work and waits for its answer: True if it asks for more, False if it has ended.

        Raises:
            Exception: the exception that ended the loop.
        """
        self._orders.put(order)
        return self.wait()

    def wait(self) -> bool:
        """Waits for the loop's answer: True if it asks for work, False if it has ended. Raises its exception."""
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the loop where it waits, without waiting for it."""
        self._orders.put(Order.CLOSE)

    def take(self) -> Any:
        """The next piece or order; called by the loop."""
        self._answers.put(True)
        order = self._orders.get()
        if order is Order.CLOSE:
            raise _Closed
        return order

    def report_end(self, error: BaseException | None) -> None:
        """Answers that the loop has ended, with its exception if there is one."""
        self._answers.put(error or False)


class _Rows(IterableDataset[Inputs]):
    """Micro-batches of the present piece, in an epoch without end."""

    def __init__(self, waiting: list[Inputs]) -> None:
        self._waiting = waiting

    def __iter__(self) -> Iterator[Inputs]:
        while True:
            yield self._waiting.pop(0)


class _Epoch(_Rows):
    """An epoch of one short window, of `length` micro-batches."""

    def __init__(self, waiting: list[Inputs], length: int) -> None:
        super().__init__(waiting)
        self._length = length

    def __len__(self) -> int:
        return self._length


@dataclass
class BeforeStep(TrainerCallback):
    """Actions of the user before the optimizer's step, where gradients are unscaled and clipped."""

    actions: list[Callable[[], None]] = field(default_factory=list)
    errors: list[RuntimeError] = field(default_factory=list)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        while self.actions:
            try:
                self.actions.pop(0)()
            except RuntimeError as error:
                self.errors.append(error)


class FedTrainer(Trainer):
    """A Trainer whose data come from a `WorkQueue`.

    Attributes:
        short: length of the windows of this `train()` if they are shorter than the accumulation steps. Each window is
            then an epoch, at whose end the library ends the window. 0: whole windows.
    """

    def __init__(self, queue: WorkQueue, forced: Callable[[Any], None], **options: Any) -> None:
        self._queue, self._forced = queue, forced
        self._waiting: list[Inputs] = []
        self.short = 0
        super().__init__(**options)

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self._forced(self.accelerator)

    def get_train_dataloader(self) -> DataLoader[Inputs]:
        rows = _Epoch(self._waiting, self.short) if self.short else _Rows(self._waiting)
        # a separate generator: a new iterator draws from it, not from the run's random stream
        return DataLoader(rows, batch_size=None, generator=torch.Generator(), collate_fn=lambda inputs: inputs)

    def get_batch_samples(self, epoch_iterator: Iterator[Inputs], num_batches: int, device: Any) -> Any:
        order = self._queue.take()
        if isinstance(order, Order):
            self.control.should_epoch_stop = True
            self.control.should_save, self.control.should_training_stop = order is Order.SAVE, order is Order.STOP
            return [], None
        self._waiting += order.inputs
        if len(order.inputs) == order.length:
            return super().get_batch_samples(epoch_iterator, num_batches, device)
        items = None if order.items is None else torch.tensor(order.items, device=device)
        return _Parts(self._queue, epoch_iterator, self._waiting, order), items

    def get_micro_batches(self, inputs: Sequence[Inputs]) -> tuple[list[Inputs], Any]:
        """The library's own list of a window's micro-batches, and its number of items."""
        return super().get_batch_samples(iter(inputs), len(inputs), self.args.device)


class _Parts(Sequence[Inputs]):
    """The micro-batches of a window, which arrive one by one while the loop iterates over them."""

    def __init__(self, queue: WorkQueue, iterator: Iterator[Inputs], waiting: list[Inputs], first: WindowPiece) -> None:
        self._queue, self._iterator, self._waiting, self._first = queue, iterator, waiting, first

    def __len__(self) -> int:
        return self._first.length

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("the micro-batches of an open window are not there yet")

    def __iter__(self) -> Iterator[Inputs]:
        yield next(self._iterator)
        for _ in range(self._first.length - 1):
            self._waiting += self._queue.take().inputs
            yield next(self._iterator)


class Loop:
    """The thread of a Trainer's `train()`; `close` ends it, from any thread.

    Attributes:
        runs: `train()` waits for a window. It ends with an epoch without a window, such as one that only saves.
    """

    def __init__(self, trainer: FedTrainer, queue: WorkQueue) -> None:
        self._trainer, self.queue = trainer, queue
        self.runs = False

    def begin(self, short: int = 0, checkpoint: str | None = None) -> None:
        """Starts `train()` and waits until it asks for a window.

        Raises:
            Exception: the library's, if it cannot start or load the checkpoint.
        """
        self._trainer.short = short
        arguments = (self._trainer, self.queue, checkpoint)
        threading.Thread(target=_train, args=arguments, name="trainer", daemon=True).start()
        self._run_until_idle(self.queue.wait)

    def send(self, order: WindowPiece | Order) -> None:
        """Calls `WorkQueue.send`; a failed loop begins again with the next call."""
        self._run_until_idle(lambda: self.queue.send(order))

    def stop(self) -> None:
        """Ends `train()` at the end of a window, as the end of the training data does."""
        if self.runs:
            self.send(Order.STOP)

    def discard(self) -> None:
        """Ends `train()` wherever it waits."""
        if self.runs:
            self.queue.close()
            self.queue.wait()
            self.runs = False

    def _run_until_idle(self, call: Callable[[], bool]) -> None:
        self.runs = False
        self.runs = call()


def _train(trainer: FedTrainer, queue: WorkQueue, checkpoint: str | None) -> None:
    """Runs one `train()` in the thread and reports its end."""
    failure: BaseException | None = None
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except _Closed:
        pass
    except BaseException as error:
        failure = error
    queue.report_end(failure)


@contextmanager
def seeds_restored() -> Iterator[None]:
    """Restores the random states of Python and NumPy, which `Trainer` seeds at its creation and on resume."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
