"""Readable state of a run."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.base import NO_AVERAGE, BaseTrainer, LossLedger
from frameworks.contract import AmaxHistories, AmaxHistory, Capability, Operand
from frameworks.jax.core.arrays import Flat, Place, to_array
from frameworks.jax.core.float8_training import amax_histories, amax_leaves, delayed_scaling_state, leaves_in
from frameworks.jax.core.network import Layout
from frameworks.jax.training import optimizers, scaler
from frameworks.jax.training.optimizers import Rules, RunState, accumulated
from frameworks.jax.training.scaler import LossScale, ScaleUpdate
from frameworks.jax.training.steps import CarriedState, CompiledSteps, JaxMicroBatch


class Readings(BaseTrainer):
    """The methods that change nothing.

    Attributes:
        train_state: parameters and the optimizer's state.
        scale: the loss scale, JMP's or Flax's.
        moved: running statistics and the random key's data.
        pending: gradients that wait for `apply`, with what Flax's scale said of them; None where there are none.
        length: how many micro-batches the open window takes.
    """

    recipe: Recipe
    steps: CompiledSteps
    layout: Layout
    train_state: RunState
    scale: LossScale
    moved: CarriedState
    pending: tuple[Flat, ScaleUpdate | None] | None
    length: int
    ledger: LossLedger[JaxMicroBatch]
    _settings: dict[str, float]
    _rules: Rules

    @abstractmethod
    def scope(self) -> AbstractContextManager[None]:
        """What the run's calls of JAX are made within."""

    @property
    @abstractmethod
    def place(self) -> Place:
        """Where what is not sharded lies."""

    @abstractmethod
    def resize(self, length: int) -> None:
        """Changes the length of windows, with the same state of `optax.MultiSteps`."""

    @property
    def leaves(self) -> Flat:
        """Every parameter by joined path, as the optimizer holds them, and the delayed-scaling state."""
        return leaves_in(self.train_state.params)

    def parameters(self) -> dict[str, Array]:
        with self.scope():
            return self.layout.arrays(self.steps.cast(self.leaves))

    def master_parameters(self) -> dict[str, Array]:
        return self.layout.arrays(self.leaves)

    def optimizer_state(self) -> dict[str, Array]:
        return optimizers.optimizer_state(self.train_state, self.layout, self._rules)

    def buffers(self) -> dict[str, Array]:
        return self.layout.arrays(self.moved.buffers) | delayed_scaling_state(self.leaves)

    def views(self) -> Mapping[type, Callable[[], Any]]:
        return {**super().views(), AmaxHistories: self.amax_histories}

    def amax_histories(self) -> dict[str, dict[Operand, AmaxHistory]]:
        if not (result := amax_histories(self.leaves, self.layout.canonical)):
            raise self.refusal(Capability.FLOAT8_TRAINING)
        return result

    def scaler_state(self) -> dict[str, Array]:
        return scaler.arrays_of(self.scale)

    def scaler_settings(self) -> dict[str, float]:
        return dict(self._settings)

    def accumulator(self) -> dict[str, Array]:
        return self.of_trained((self.pending[0] if self.pending else {}) | accumulated(self.train_state))

    def of_trained(self, leaves: Flat) -> dict[str, Array]:
        """Arrays by canonical name, without the zeros of parameters that are not trained."""
        result = self.layout.arrays(leaves)
        return {name: value for name, value in result.items() if name not in self.recipe.frozen}

    def random_state(self) -> dict[str, Array]:
        return {"key": to_array(self.moved.key)}

    def predict(self, inputs: Array) -> dict[str, Array]:
        return self._predict(self.leaves, inputs)

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        return self._predict(self.averages(), inputs)

    def averages(self) -> Flat:
        """The average of the weights by joined path.

        Raises:
            ValueError: the recipe asks for none.
        """
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        result: Flat = self.train_state.average
        return result | amax_leaves(self.leaves)

    def _predict(self, leaves: Flat, inputs: Array) -> dict[str, Array]:
        return {name: to_array(value) for name, value in self.outputs(leaves, inputs).items()}

    def outputs(self, leaves: Flat, inputs: Array) -> dict[str, jax.Array]:
        """Evaluation-mode forward with these parameters: output by head name."""
        with self.scope():
            return self.steps.predict(leaves, self.moved.buffers, jax.device_put(inputs, self.place))
