"""Base of trainers: window loop, losses of a window, full state, refusals, and checks of traces and checkpoints."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from frameworks.contract import (
    NOT_OFFERED,
    Attempt,
    Capability,
    Declaration,
    LayerTrace,
    LoadOrder,
    QuantizedModel,
    Trainer,
    Unsupported,
    Update,
)
from frameworks.contract.quantization import offer_of

NO_SCALER = "without a scaler there is nothing to unscale"
NO_AVERAGE = "this recipe asks for no average"
"""Reasons of refusals that adapters share."""

T = TypeVar("T")
V = TypeVar("V")
Run = TypeVar("Run")


def over_window(window: Window, step: Callable[[Batch, int], T]) -> list[T]:
    """Calls `step` with each micro-batch and the window's number of items; returns the results."""
    items = sum(batch.items for batch in window)
    return [step(batch, items) for batch in window]


@dataclass(frozen=True)
class MicroBatch:
    """The result of one micro-batch of an open window.

    Attributes:
        total: sum of the unscaled losses of its items.
        items: number of items.
    """

    total: float
    items: int

    @property
    def loss(self) -> float:
        """Unscaled mean loss; NaN without items."""
        return self.total / self.items if self.items else math.nan


@dataclass(frozen=True)
class AppliedMicroBatch(MicroBatch):
    """A micro-batch of a window that the framework ends by itself.

    Attributes:
        scale_before: loss scale before the micro-batch, 1.0 without one.
        applied: True if the framework made an update after it.
        rate: learning rate of that update, or of a skipped one.
    """

    scale_before: float = 1.0
    applied: bool = False
    rate: float = math.nan


M = TypeVar("M", bound=MicroBatch)


class LossLedger(Generic[M]):
    """The micro-batches of the open window, in order.

    Attributes:
        micro_batches: result of each micro-batch.
        items: number of items of the whole window, including micro-batches to come.
    """

    def __init__(self) -> None:
        self.micro_batches: list[M] = []
        self.items = 0

    def add(self, micro: M, items: int) -> float:
        """Records a micro-batch of a window of `items` items; returns its mean loss."""
        self.micro_batches.append(micro)
        self.items = items
        return micro.loss

    def loss(self) -> float:
        """Unscaled mean loss over the window's items; NaN without micro-batches or items."""
        if not self.micro_batches or not self.items:
            return math.nan
        return sum(micro.total for micro in self.micro_batches) / self.items

    def losses(self) -> tuple[float, ...]:
        """Unscaled mean loss of each micro-batch."""
        return tuple(micro.loss for micro in self.micro_batches)

    def replace(self, micro_batches: Sequence[M], items: int) -> None:
        """Replaces the micro-batches, by those of a checkpoint or by none after the end of a window."""
        self.micro_batches = list(micro_batches)
        self.items = items

    def empty(self) -> None:
        """Begins the next window."""
        self.replace((), 0)


def ending(window: Sequence[AppliedMicroBatch]) -> tuple[bool, float, float]:
    """The state of a window that the framework ends by itself.

    Returns:
        True if the framework made an update; the loss scale at the window's beginning; the learning rate of the update,
        or of the skipped one.

    Raises:
        ValueError: the window has no micro-batch.
    """
    if not window:
        raise ValueError("apply without any micro-batch before it")
    applied = [micro for micro in window if micro.applied]
    return bool(applied), window[0].scale_before, (applied or window)[-1].rate


class Refusing(ABC):
    """Refuses calls whose capability is declared as unsupported."""

    declares: Callable[[Capability], Declaration]

    def require(self, capability: Capability) -> None:
        """Raises `Unsupported` with the declared reason unless the capability is declared as supported."""
        if not self.declares(capability).supported:
            raise self.refusal(capability)

    def refusal(self, capability: Capability, attempt: Attempt | None = None) -> Unsupported:
        """The refusal of an unsupported capability, with the declared reason.

        Args:
            attempt: the attempt of a refused combination, if the capability is otherwise supported.
        """
        return Unsupported.from_declaration(capability, self.declares(capability), attempt)


class BaseTrainer(Refusing):
    """Default `update` and `state`, and refusals for methods that an adapter does not implement.

    Attributes:
        declares: returns the framework's declaration of a capability.
    """

    declares: Callable[[Capability], Declaration] = staticmethod(lambda _: NOT_OFFERED)

    @abstractmethod
    def accumulate(self, batch: Batch, items: int) -> float: ...

    @abstractmethod
    def apply(self) -> Update: ...

    @abstractmethod
    def parameters(self) -> dict[str, Array]: ...

    def update(self, window: Window) -> Update:
        over_window(window, self.accumulate)
        return self.apply()

    def master_parameters(self) -> dict[str, Array]:
        return self.parameters()

    def optimizer_state(self) -> dict[str, Array]:
        return {}

    def buffers(self) -> dict[str, Array]:
        return {}

    def scaler_state(self) -> dict[str, Array]:
        return {}

    def scaler_settings(self) -> dict[str, float]:
        return {}

    def accumulator(self) -> dict[str, Array]:
        return {}

    def random_state(self) -> dict[str, Array]:
        return {}

    def state(self) -> dict[str, Array]:
        parts = {
            "parameter": self.parameters(),
            "master": self.master_parameters(),
            "optimizer": self.optimizer_state(),
            "buffer": self.buffers(),
            "scaler": self.scaler_state(),
            "accumulator": self.accumulator(),
            "random": self.random_state(),
        }
        return {f"{part}/{name}": np.array(value) for part, values in parts.items() for name, value in values.items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        raise self.refusal(Capability.AVERAGE)

    def views(self) -> Mapping[type, Callable[[], Any]]:
        """Functions that read the state of a technique, by the class that `view` is asked for."""
        return {}

    def view(self, kind: type[V]) -> V:
        read = self.views().get(kind)
        if read is None:
            raise self.refusal(offer_of(kind)[0])
        return cast(Callable[[Any], V], kind)(read())

    def convert(self) -> QuantizedModel:
        raise self.refusal(Capability.CONVERT)

    def hook_calls(self) -> int:
        raise self.refusal(Capability.STEP_HOOKS)

    def segment_calls(self) -> tuple[int, ...]:
        raise self.refusal(Capability.SEGMENT_CALLS)

    def save(self, path: Path) -> None:
        raise self.refusal(Capability.CHECKPOINT)

    def restore(self, path: Path) -> None:
        raise self.refusal(Capability.CHECKPOINT)

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        raise self.refusal(Capability.LOAD_ORDER)

    def freeze(self, names: Collection[str]) -> None:
        raise self.refusal(Capability.FREEZE)

    def take(self, other: Trainer) -> None:
        raise self.refusal(Capability.LIVE_STATE)

    def saved_bytes(self, batch: Batch) -> int:
        raise self.refusal(Capability.SAVED_BYTES)

    def offloaded_bytes(self) -> dict[str, int]:
        raise self.refusal(Capability.OFFLOAD_ACTIVATIONS)

    def trace(self, batch: Batch) -> LayerTrace:
        raise self.refusal(Capability.TRACE)

    def peak_bytes(self) -> int:
        raise self.refusal(Capability.PEAK_BYTES)


def traced_paths(model: Model, batch: Batch) -> tuple[str, ...]:
    """Paths of the layers that a trace of this batch shows, in its order: all but heads without targets."""
    last = f"{len(model.layers) - 1}."
    return tuple(
        path for path in model.output_shapes() if not path.startswith(last) or path.removeprefix(last) in batch.targets
    )


def unscaled_in_trace(gradient: Array, scale: float) -> Array:
    """An output's gradient divided by the loss scale, in float32 or wider; unchanged if the scale is 1."""
    if scale == 1.0:
        return gradient
    return np.asarray(gradient.astype(np.promote_types(gradient.dtype, np.float32)) / scale)


def same_parts(file: Path, saved: Collection[str], own: Collection[str]) -> None:
    """Refuses a checkpoint whose parts (model, optimizer, scaler, ...) differ from those of the run that loads it.

    The user's code puts the parts in one container, so that no framework compares them. The framework's own calls then
    load each part without a further check.

    Raises:
        ValueError: the checkpoint or the run lacks a part.
    """
    if missing := sorted(set(own) - set(saved)):
        raise ValueError(f"{file} lacks {', '.join(missing)}, which this run has")
    if unknown := sorted(set(saved) - set(own)):
        raise ValueError(f"{file} holds {', '.join(unknown)}, for which this run has no place")


def of_same_class(run: Run, other: object) -> Run:
    """Returns `other`, after a check that it has the class of `run`, which can take its state.

    Raises:
        TypeError: `other` is of another class.
    """
    if not isinstance(other, type(run)):
        raise TypeError(f"the run whose state is taken: got {type(other).__name__}, want {type(run).__name__}")
    return other
