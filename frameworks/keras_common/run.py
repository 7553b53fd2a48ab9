"""One training run with Keras, on any backend."""

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer, LossLedger, ending
from frameworks.contract import Capability, Gradients, Update
from frameworks.keras_common.micro_batches import KerasMicroBatch
from frameworks.keras_common.network import BuiltNetwork
from frameworks.keras_common.optimizers import ACCUMULATOR, slots
from frameworks.keras_common.scaler import inner_of, scaler_state


class KerasRun(BaseTrainer):
    """One run. Keras ends a window itself with the k-th micro-batch, so `apply` only reports.

    Attributes:
        slots: variables of the optimizer for each parameter, as "SLOT/PARAMETER".
        gathered: accumulators of variables that their gradients overwrite.
        ledger: the open window.
    """

    def __init__(
        self, model: Model, recipe: Recipe, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.bound = bound
        self.optimizer = optimizer
        self.ledger: LossLedger[KerasMicroBatch] = LossLedger()
        every = slots(optimizer, bound.variables | bound.memory)
        self.slots = {slot: own for slot, own in every.items() if slot.partition("/")[2] in bound.variables}
        self.gathered: dict[str, keras.Variable] = {
            slot.removeprefix(ACCUMULATOR): own for slot, own in every.items() if slot not in self.slots
        }

    @abstractmethod
    def scope(self) -> AbstractContextManager[None]:
        """The context of the run's calls of Keras."""

    @abstractmethod
    def value(self, variable: keras.Variable) -> Array:
        """A copy of a variable's value in this run, in its true format."""

    @abstractmethod
    def applied_updates(self) -> Array:
        """Applied updates, as the optimizer counts them."""

    @abstractmethod
    def fed(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        """The optimizer's step of the back-propagated scaled Σ p·g over the parameters in `gradients`."""

    # windows

    def update(self, window: Window) -> Update:
        self.check_length(len(window))
        return super().update(window)

    def check_length(self, length: int) -> None:
        """Refuses more micro-batches than one window has.

        Raises:
            ValueError: there are more.
        """
        if length > self.recipe.accumulation:
            raise ValueError(f"{length} micro-batches are more than one window of {self.recipe.accumulation}")

    def enter(self, micro: KerasMicroBatch) -> float:
        """Records a micro-batch; the window's items are those so far, since Keras knows no others."""
        return self.ledger.add(micro, self.ledger.items + micro.items)

    def apply(self) -> Update:
        return self.ended(self.ledger)

    def ended(self, ledger: LossLedger[KerasMicroBatch]) -> Update:
        """The result of the window in a ledger, which is cleared.

        Raises:
            Unsupported: PARTIAL_WINDOW.
        """
        window = ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self.recipe.accumulation:
            raise self.refusal(Capability.PARTIAL_WINDOW)
        last = window[-1]
        good = None if last.good_steps < 0 else last.good_steps
        loss, losses = ledger.loss(), ledger.losses()
        ledger.empty()
        return Update(loss, losses, before, last.scale_after, good, not moved, None, rate)

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        if unscale_calls is not None or inject is not None or discard:
            raise self.refusal(Capability.EXPLICIT_UNSCALE)
        self.check_length(len(window))
        with self.scope():
            for gradients in window:
                self.enter(self.fed(self.given(gradients)))
        return self.apply()

    def given(self, gradients: Gradients) -> dict[str, Array]:
        """The gradients that are there in Keras' shapes, in float32, or in float64 for a float64 variable."""
        present = {name: gradients.get(name) for name in self.bound.variables}
        return {
            name: self.bound.native(name, value).astype(_wide(self.bound.variables[name]))
            for name, value in present.items()
            if value is not None
        }

    # what a run has

    def parameters(self) -> dict[str, Array]:
        return {name: self.bound.canonical(name, self.value(own)) for name, own in self.bound.variables.items()}

    def of_slots(self) -> dict[str, Array]:
        """The optimizer's variables for each parameter, in canonical shape."""
        return {slot: self.bound.canonical(slot.partition("/")[2], self.value(own)) for slot, own in self.slots.items()}

    def optimizer_state(self) -> dict[str, Array]:
        result = {slot: value for slot, value in self.of_slots().items() if not slot.startswith(ACCUMULATOR)}
        result["steps"] = self.applied_updates()
        if self.recipe.schedule is not None:
            result["schedule"] = self._micro_batches()
        return result

    def buffers(self) -> dict[str, Array]:
        return {name: self.value(variable) for name, variable in self.bound.buffers.items()}

    def scaler_state(self) -> dict[str, Array]:
        return scaler_state(self.optimizer, self.value)

    def accumulator(self) -> dict[str, Array]:
        if self._position() == 0:
            return {}
        sums = {s.removeprefix(ACCUMULATOR): v for s, v in self.of_slots().items() if s.startswith(ACCUMULATOR)}
        return {name: value / np.asarray(self.recipe.accumulation, value.dtype) for name, value in sums.items()}

    def random_state(self) -> dict[str, Array]:
        return {path: self.value(seed.state) for path, seed in self.bound.seeds.items()}

    def state(self) -> dict[str, Array]:
        position = {"accumulator/position": np.array(self._position())} if self.recipe.accumulation > 1 else {}
        return super().state() | position

    def _micro_batches(self) -> Array:
        """The optimizer's own counter, which accumulation divides and a schedule reads undivided."""
        return self.value(inner_of(self.optimizer).variables[0])

    def _position(self) -> int:
        return int(self._micro_batches()) % self.recipe.accumulation


def _wide(variable: keras.Variable) -> type[np.floating]:
    return np.float64 if variable.dtype == "float64" else np.float32
