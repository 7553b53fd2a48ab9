"""Readable state of a run in dynamic mode, and which parameters it trains."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer, LossLedger, MicroBatch
from frameworks.base.activations import SavedActivations
from frameworks.paddle.core.arrays import canonical, to_numpy
from frameworks.paddle.core.network import Network
from frameworks.paddle.core.streams import Stream
from frameworks.paddle.training.optimizers import Share, counters, slots
from frameworks.paddle.training.scaler import read_state


class ReadRun(BaseTrainer):
    """The readings of a run.

    Attributes:
        settings: the scaler's as it was made; empty without one.
    """

    recipe: Recipe
    network: Network
    shares: list[Share]
    scaler: Any | None
    settings: dict[str, float]
    stream: Stream
    activations: SavedActivations
    ledger: LossLedger[MicroBatch]

    @abstractmethod
    def anew(self) -> ReadRun:
        """A new run, as created by a process that resumes."""

    @abstractmethod
    def use_scaler(self) -> None:
        """Scales a loss that nothing is done with."""

    def freeze(self, names: Collection[str]) -> None:
        for name, parameter in self.network.named.items():
            parameter.stop_gradient = name in names or name in self.recipe.frozen

    def parameters(self) -> dict[str, Array]:
        return {name: canonical(to_numpy(parameter)) for name, parameter in self.network.named.items()}

    def master_parameters(self) -> dict[str, Array]:
        masters: dict[str, Any] = {}
        for share in self.shares:
            masters.update(share.optimizer.state_dict().get("master_weights", {}))
        return {
            name: canonical(to_numpy(masters.get(parameter.name, parameter)))
            for name, parameter in self.network.named.items()
        }

    def optimizer_state(self) -> dict[str, Array]:
        result: dict[str, Array] = {}
        for place, share in enumerate(self.shares):
            for slot, value in slots(share, self.network.named).items():
                result[f"{slot}/{place}" if slot == "schedule" and place else slot] = value
        return result | counters(self.recipe.optimizer, result)

    def buffers(self) -> dict[str, Array]:
        return {name: to_numpy(value) for name, value in self.network.statistics.items()}

    def scaler_state(self) -> dict[str, Array]:
        return {} if self.scaler is None else read_state(self.scaler)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self.settings)

    def accumulator(self) -> dict[str, Array]:
        grads = {name: parameter.grad for name, parameter in self.network.named.items()}
        return {name: canonical(to_numpy(grad)) for name, grad in grads.items() if grad is not None}

    def random_state(self) -> dict[str, Array]:
        return {"generator": self.stream.words()}

    def offloaded(self) -> dict[str, int]:
        return super().offloaded() if self.recipe.offload is None else {"activations": self.activations.taken()}

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(segment.calls for segment in self.network.segments)
