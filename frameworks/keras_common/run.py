"""One training run with Keras on any backend, of one rank or of several in one process."""

import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, fields
from typing import Any, Protocol

import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import (
    NO_AVERAGE,
    AppliedMicroBatch,
    Arguments,
    BaseTrainer,
    LossLedger,
    ending,
    traced_paths,
    unscaled_in_trace,
)
from frameworks.contract import Capability, Gradients, LayerTrace, Update
from frameworks.keras_common.layers import BuiltNetwork, Tensor
from frameworks.keras_common.optimizers import ACCUMULATOR, inner_of, is_dynamic, readable_optimizer, slots


@dataclass(frozen=True)
class KerasMicroBatch(AppliedMicroBatch):
    """The framework's report of one micro-batch.

    Attributes:
        scale_after: the loss scale after it, 1 without scaling.
        good_steps: the scaler's growth counter after it, -1 without one.
        mean: unscaled mean loss if Keras itself computes the mean, else NaN.
    """

    scale_after: float = 1.0
    good_steps: int = -1
    mean: float = math.nan

    @property
    def loss(self) -> float:
        return super().loss if math.isnan(self.mean) else self.mean


COLUMNS = len(fields(KerasMicroBatch))
"""Number of values of a micro-batch in a checkpoint."""


def rows_of(micro_batches: Sequence[KerasMicroBatch]) -> Array:
    """The fields of micro-batches as an array (micro-batches, COLUMNS), float64."""
    return np.array([astuple(micro) for micro in micro_batches], np.float64).reshape(-1, COLUMNS)


def micro_batches_of(rows: Iterable[Sequence[float]]) -> list[KerasMicroBatch]:
    """Inverse of `rows_of`."""
    numbers = (map(float, row) for row in rows)
    return [
        KerasMicroBatch(total, int(items), scale_before, bool(applied), rate, scale_after, int(good_steps), mean)
        for total, items, scale_before, applied, rate, scale_after, good_steps, mean in numbers
    ]


class KerasRun(BaseTrainer):
    """One run. Keras ends a window itself with the k-th micro-batch, so `apply` only reports.

    Attributes:
        slots: variables of the optimizer for each parameter, as "SLOT/PARAMETER".
        gathered: accumulators of the variables that Keras overwrites with their gradients.
        ledgers: the open window of each rank.
    """

    def __init__(
        self, model: Model, recipe: Recipe, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.bound = bound
        self.optimizer = optimizer
        ranks = 1 if recipe.ranks is None else recipe.ranks.count
        self.ledgers: list[LossLedger[KerasMicroBatch]] = [LossLedger() for _ in range(ranks)]
        every = slots(optimizer, bound.variables | bound.memory)
        self.slots = {slot: own for slot, own in every.items() if slot.partition("/")[2] in bound.variables}
        self.gathered: dict[str, keras.Variable] = {
            slot.removeprefix(ACCUMULATOR): own for slot, own in every.items() if slot not in self.slots
        }

    @property
    def ledger(self) -> LossLedger[KerasMicroBatch]:
        """The open window of the first rank."""
        return self.ledgers[0]

    @abstractmethod
    def scope(self) -> AbstractContextManager[None]:
        """The context in which the run calls Keras."""

    @abstractmethod
    def value(self, variable: keras.Variable) -> Array:
        """A copy of a variable's value in this run, in its true format."""

    @abstractmethod
    def applied_updates(self) -> Array:
        """Number of applied updates, by the optimizer's own count."""

    @abstractmethod
    def feed_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        """The optimizer's step of the back-propagated scaled Σ p·g over the parameters in `gradients`."""

    # windows

    def update(self, window: Window) -> Update:
        self.check_length(len(window))
        return super().update(window)

    def check_length(self, length: int) -> None:
        """Refuses more micro-batches than one window has.

        Raises:
            ValueError: there are more micro-batches.
        """
        if length > self.recipe.accumulation:
            raise ValueError(f"{length} micro-batches are more than one window of {self.recipe.accumulation}")

    def enter(self, micro: KerasMicroBatch) -> float:
        """Records a micro-batch. The window's items are those so far, since Keras does not know later ones."""
        return self.ledger.add(micro, self.ledger.items + micro.items)

    def apply(self) -> Update:
        return self.end_window(self.ledger)

    def end_window(self, ledger: LossLedger[KerasMicroBatch]) -> Update:
        """Returns the result of the window in a ledger, and clears the ledger.

        Raises:
            Unsupported: PARTIAL_WINDOW.
        """
        window = ledger.micro_batches
        moved, before, rate = ending(window)
        if not moved and len(window) < self.recipe.accumulation:
            raise self.refusal(Capability.PARTIAL_WINDOW)
        last = window[-1]
        good, after = None if last.good_steps < 0 else last.good_steps, last.scale_after
        loss, losses = ledger.loss(), ledger.losses()
        ledger.empty()
        return Update(loss, losses, before, after, good, skipped=not moved, gradient_norm=None, learning_rate=rate)

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
                self.enter(self.feed_gradients(self.convert_gradients(gradients)))
        return self.apply()

    def convert_gradients(self, gradients: Gradients) -> dict[str, Array]:
        """The gradients that are not None, in Keras' shapes; float32, or float64 for a float64 variable."""
        result = {}
        for name, variable in self.bound.variables.items():
            if (value := gradients.get(name)) is not None:
                wide = np.float64 if variable.dtype == "float64" else np.float32
                result[name] = self.bound.native(name, value).astype(wide)
        return result

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
        if is_dynamic(self.optimizer):
            scaler = self.optimizer
            return {"scale": self.value(scaler.dynamic_scale), "good_steps": self.value(scaler.step_counter)}
        constant = self.optimizer.loss_scale_factor
        return {} if constant is None else {"scale": np.array(constant, np.float32)}

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
        """Number of micro-batches: the optimizer's counter, not divided by the accumulation, which a schedule reads."""
        return self.value(inner_of(self.optimizer).variables[0])

    def _position(self) -> int:
        return int(self._micro_batches()) % self.recipe.accumulation


@dataclass(frozen=True)
class TracedPass:
    """The values of one traced pass.

    Attributes:
        outputs: output of every layer, by the name of the Keras layer, in execution order.
        gradients: gradients of the scaled loss with respect to these outputs.
        parameters: the result of `KerasLoop.gradients`.
        scale: the loss scale.
    """

    outputs: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    scale: Any


class KerasLoop(Protocol):
    """The training loop of Keras' guide for a backend."""

    def train(self, batch: Batch) -> KerasMicroBatch:
        """Forward, backward, and `optimizer.apply` of one micro-batch."""

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Existing gradients of one micro-batch, divided by the loss scale as `optimizer.apply` would."""

    def trace(self, batch: Batch) -> TracedPass:
        """The pass of `gradients` on one micro-batch, with outputs and gradients of every layer."""

    def apply_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        """`optimizer.apply` of the back-propagated scaled Σ p·g over the parameters in `gradients`."""

    def predict(self, inputs: Array) -> dict[str, Tensor]:
        """Evaluation-mode outputs by head."""


class StatefulRun(KerasRun):
    """A run whose state is in Keras' variables.

    Attributes:
        loop: the training loop of the run.
        compiling: arguments of `Model.compile`, for evaluation with the average.
    """

    loop: KerasLoop
    compiling: Mapping[str, Any]

    @abstractmethod
    def array(self, tensor: Tensor) -> Array:
        """A copy of a tensor in its true format."""

    def applied_updates(self) -> Array:
        return self.array(keras.ops.convert_to_tensor(readable_optimizer(self.optimizer).iterations))

    def accumulate(self, batch: Batch, items: int) -> float:
        with self.scope():
            return self.enter(self.loop.train(batch))

    def feed_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        return self.loop.apply_gradients(gradients)

    def gradients(self, window: Window) -> dict[str, Array]:
        with self.scope():
            return self.mean([self.loop.gradients(batch) for batch in window])

    def mean(self, gradients: Sequence[Mapping[str, Tensor]]) -> dict[str, Array]:
        """The mean of the micro-batches' gradients; missing ones count as zeros."""
        totals: dict[str, Tensor] = {}
        for own in gradients:
            for name, gradient in own.items():
                totals[name] = totals[name] + gradient if name in totals else gradient
        result = {name: self.bound.canonical(name, self.array(total)) for name, total in totals.items()}
        return {name: value / np.asarray(len(gradients), value.dtype) for name, value in result.items()}

    def predict(self, inputs: Array) -> dict[str, Array]:
        with self.scope():
            outputs = self.loop.predict(inputs)
        return {name: self.array(output) for name, output in outputs.items()}

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """`Model.predict` with the callback `SwapEMAWeights`, as Keras documents evaluation with the average."""
        if self.recipe.average is None:
            raise ValueError(NO_AVERAGE)
        network, average = self.bound.network, keras.callbacks.SwapEMAWeights()
        with self.scope():
            if getattr(network, "optimizer", None) is not self.optimizer:
                network.compile(optimizer=self.optimizer, auto_scale_loss=False, **self.compiling)
            outputs = network.predict(inputs, batch_size=len(inputs), verbose=0, callbacks=[average])
        return {name: np.asarray(output) for name, output in outputs.items()}

    def trace(self, batch: Batch) -> LayerTrace:
        with self.scope():
            traced = self.loop.trace(batch)
        layers, scale = self.bound.layers, float(traced.scale)
        paths = traced_paths(self.model, batch)
        return LayerTrace(
            {path: self.array(traced.outputs[layers[path]]) for path in paths},
            {path: unscaled_in_trace(self.array(traced.gradients[layers[path]]), scale) for path in paths},
            {name: self.bound.canonical(name, self.array(value)) for name, value in traced.parameters.items()},
        )


class RunOfRanks(KerasRun):
    """Base of a backend's run of all ranks in one process. Methods take one argument for each rank.

    Attributes:
        read: names of the methods whose result each rank reads from its own copies of variables.
    """

    read: Collection[str]

    @abstractmethod
    def by_rank(self, verb: str) -> tuple[Any, ...]:
        """Result of a method without arguments for each rank, which reads the rank's own copies of variables."""

    @abstractmethod
    def accumulate_parts(self, parts: Sequence[Batch]) -> tuple[float, ...]:
        """`accumulate` with each rank's part of a micro-batch."""

    @abstractmethod
    def feed_part(self, parts: Sequence[Gradients]) -> None:
        """`apply_gradients` of a micro-batch with each rank's gradients."""

    @abstractmethod
    def gradients_of_parts(self, windows: Sequence[Window]) -> tuple[dict[str, Array], ...]:
        """`gradients` of the windows of all ranks together, by rank."""

    @abstractmethod
    def predictions(self, inputs: Array) -> tuple[dict[str, Array], ...]:
        """`predict` by each rank."""

    def record_by_rank(self, micro_batches: Iterable[KerasMicroBatch]) -> tuple[float, ...]:
        """Records each rank's result of a micro-batch; returns the mean losses."""
        pairs = zip(self.ledgers, micro_batches, strict=True)
        return tuple(ledger.add(micro, ledger.items + micro.items) for ledger, micro in pairs)

    def updates(self) -> tuple[Update, ...]:
        """`apply`, with the result by rank."""
        return tuple(self.end_window(ledger) for ledger in self.ledgers)

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with the arguments of each rank; returns one result for each.

        Raises:
            Unsupported: RANKS_COLLECTIVES, EXPLICIT_UNSCALE, or a capability that the run itself refuses.
        """
        if verb in self.read:
            return self.by_rank(verb)
        first = [entry.arguments[0] for entry in arguments if entry.arguments]
        match verb:
            case "update_share":
                self.check_length(len(first[0]))
                for parts in zip(*first, strict=True):
                    self.accumulate_parts(parts)
                return self.updates()
            case "accumulate":
                return self.accumulate_parts(first)
            case "apply":
                return self.updates()
            case "gradients_share":
                return self.gradients_of_parts(first)
            case "apply_gradients":
                named = arguments[0].named
                injected = any(own.named["inject"] is not None for own in arguments)
                if named["unscale_calls"] is not None or named["discard"] or injected:
                    raise self.refusal(Capability.EXPLICIT_UNSCALE)
                windows = [own.arguments for own in arguments]
                self.check_length(len(windows[0]))
                with self.scope():
                    for parts in zip(*windows, strict=True):
                        self.feed_part(parts)
                return self.updates()
            case "predict":
                return self.predictions(first[0])
            case "collectives":
                raise self.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(self, verb)(*arguments[0].arguments, **arguments[0].named),) * len(arguments)


class KerasCurve(keras.callbacks.Callback):
    """Records every batch's loss.

    Keras logs the mean of an epoch so far. The callback resets it before each batch, so the progress bar shows each
    batch's loss as well.

    `conformance curves` compares what it writes.

    Args:
        recorder: a `conformance.curves.CurveRecorder`.
    """

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder
        self.settings: dict[str, float] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Read the rate and the loss scale that the update will use."""
        self.model.reset_metrics()
        optimizer = self.model.optimizer
        self.settings = {"learning_rate": float(optimizer.learning_rate)}
        if hasattr(optimizer, "dynamic_scale"):
            self.settings["loss_scale"] = float(optimizer.dynamic_scale)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Record the batch."""
        self.recorder.step(logs["loss"], **self.settings)

    def on_train_end(self, logs: Any = None) -> None:
        """Write the last batch."""
        self.recorder.close()
