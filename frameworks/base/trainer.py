"""Base of trainers: window loop, full state, and refusals by declaration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.base.window import over_window
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
from frameworks.contract.rules import offer_of

NO_SCALER = "without a scaler there is nothing to unscale"
NO_AVERAGE = "this recipe asks for no average"


def _nothing_offered(_: Capability) -> Declaration:
    return NOT_OFFERED


V = TypeVar("V")


class BaseTrainer(ABC):
    """Default `update` and `state`, and refusals for methods that an adapter does not implement.

    Attributes:
        declares: the framework's declarations, by which a run refuses.
    """

    declares: Callable[[Capability], Declaration] = staticmethod(_nothing_offered)

    @abstractmethod
    def accumulate(self, batch: Batch, items: int) -> float: ...

    @abstractmethod
    def apply(self) -> Update: ...

    @abstractmethod
    def parameters(self) -> dict[str, Array]: ...

    def refusal(self, capability: Capability, attempt: Attempt | None = None) -> Unsupported:
        """The refusal of an unsupported capability, with the declared reason.

        Args:
            attempt: for a refused combination of a capability that is otherwise supported.
        """
        return Unsupported.declared(capability, self.declares(capability), attempt)

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
        """What reads the state of techniques, by the class that `view` is asked for."""
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

    def offloaded(self) -> dict[str, int]:
        raise self.refusal(Capability.OFFLOAD_ACTIVATIONS)

    def trace(self, batch: Batch) -> LayerTrace:
        raise self.refusal(Capability.TRACE)

    def peak_bytes(self) -> int:
        raise self.refusal(Capability.PEAK_BYTES)
