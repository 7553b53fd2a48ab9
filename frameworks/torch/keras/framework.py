"""Keras on PyTorch as a framework of the suite: one training run, and its checkpoints in one file of `torch.save`.

The file is a dictionary of the user's, as in PyTorch's tutorial on checkpoints. A Keras model on PyTorch is a
`torch.nn.Module` with a `state_dict`, and Keras returns an optimizer's variables by `save_own_variables`. Seeds are a
separate part, because a `state_dict` names them by the order in which the process created them. This module compares
the names of the optimizer's variables; `load_own_variables` compares only their number, and only warns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import keras
import torch

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.base import BaseShipped, same_parts, shipped_attempts
from frameworks.contract import Attempt, Capability, OpResult, Part, RecomputeCase, RecomputeResult
from frameworks.keras_common.framework import NO_LISTS, REFUSED, SUPPORTED, ScopeOfPolicies, keras_attempts
from frameworks.keras_common.layers import Begins, BuiltNetwork, NetworkBuilder, batch_losses_of, watched_by
from frameworks.keras_common.optimizers import (
    KerasOptimizers,
    OptimizerReadings,
    make_optimizer,
    read_optimizer,
    scaler_settings,
)
from frameworks.keras_common.run import KerasLoop, KerasMicroBatch, StatefulRun, TracedPass, micro_batches_of, rows_of
from frameworks.keras_common.settings import dtype_policy, policy_of, read_settings, scalars, write_settings
from frameworks.torch.core import settings
from frameworks.torch.core.operations import differentiate_case
from frameworks.torch.core.settings import SavedBytes, put_back, to_array, to_tensor
from frameworks.torch.stacks.framework import StackFramework

Gradients = dict[str, torch.Tensor | None]
"""Scaled gradients by parameter, in model order."""

FILE = "run.pt"
_CPU_REFUSED: dict[Capability, str] = {Capability.PEAK_BYTES: "PyTorch counts a GPU's allocations, and none of a CPU's"}
_DISTRIBUTION = "keras.distribution is implemented for Keras on JAX alone"
_RANKS = (
    Capability.RANKS_REPLICATED,
    Capability.RANKS_OPTIMIZER,
    Capability.RANKS_GRADIENTS,
    Capability.RANKS_FULL,
    Capability.RANKS_HYBRID,
)


class AutogradBackend:
    """Updates by `Optimizer.apply`."""

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[float], weights: Sequence[keras.Variable]
    ) -> None:
        """One update of scalar weights by these gradients."""
        with torch.no_grad():
            optimizer.apply([keras.ops.convert_to_tensor(g, "float32") for g in gradients], weights)


BACKEND = AutogradBackend()


class EagerLoop(KerasLoop):
    """The steps of one run."""

    def __init__(
        self, model: Model, bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, separate_losses: bool
    ) -> None:
        self._model = model
        self._bound = bound
        self._optimizer = optimizer
        self._separate = separate_losses
        self._losses = batch_losses_of(model)

    def train(self, batch: Batch) -> KerasMicroBatch:
        total, gradients = self._backward(self.losses(batch))
        return self._apply(float(total.detach()), gradients, batch.items)

    def gradients(self, batch: Batch) -> dict[str, torch.Tensor]:
        return self._unscale_gradients(self._backward(self.losses(batch))[1])

    def trace(self, batch: Batch) -> TracedPass:
        with _collect_outputs() as outputs:
            parameters = self._unscale_gradients(self._backward(self.losses(batch))[1])
        result = {name: output.grad for name, output in outputs.items() if output.grad is not None}
        return TracedPass(
            {name: output.detach() for name, output in outputs.items()}, result, parameters, self._read().scale
        )

    def apply_gradients(self, gradients: Mapping[str, Array]) -> KerasMicroBatch:
        parts = [self._part(name, keras.ops.convert_to_tensor(value)) for name, value in gradients.items()]
        _, scaled = self._backward([reduce(torch.add, parts)] if parts else [])
        return self._apply(math.nan, scaled, 1)

    def _part(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        weight = self._bound.variables[name].value
        return (weight.to(gradient.dtype) * gradient).sum().to(torch.float32)

    def predict(self, inputs: Array) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return self._bound.network(keras.ops.convert_to_tensor(inputs), training=False)

    def losses(self, batch: Batch) -> list[torch.Tensor]:
        """Training-mode loss of each head that has targets, in one format."""
        outputs = self._bound.network(keras.ops.convert_to_tensor(batch.inputs), training=True)
        result = [
            self._losses[name, batch.mask is not None](batch.targets[name], outputs[name], sample_weight=batch.mask)
            for name, _ in self._model.losses
            if name in batch.targets
        ]
        widest = torch.float64 if any(loss.dtype == torch.float64 for loss in result) else result[0].dtype
        return [loss.to(widest) for loss in result]

    def _backward(self, losses: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Gradients]:
        """The sum of the losses and its scaled gradients; separate losses each have a backward pass."""
        self._bound.network.zero_grad()
        total = reduce(torch.add, losses) if losses else torch.zeros(())
        parts = losses if self._separate else [total][: len(losses)]
        for number, part in enumerate(parts, start=1):
            self._optimizer.scale_loss(part).backward(retain_graph=number < len(parts))
        return total, {name: variable.value.grad for name, variable in self._bound.variables.items()}

    def _apply(self, loss: float, gradients: Gradients, items: int) -> KerasMicroBatch:
        before = self._read()
        with torch.no_grad():
            self._optimizer.apply(list(gradients.values()), list(self._bound.variables.values()))
        after = self._read()
        applied = after.updates > before.updates
        return KerasMicroBatch(loss * items, items, before.scale, applied, before.rate, after.scale, after.good, loss)

    def _read(self) -> OptimizerReadings:
        scale, updates, rate, good = read_optimizer(self._optimizer)
        return OptimizerReadings(float(scale), int(updates), float(rate), int(good))

    def _unscale_gradients(self, gradients: Gradients) -> dict[str, torch.Tensor]:
        """Existing gradients divided by the loss scale as in the optimizer, in their own formats."""
        scale = self._read().scale
        present = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        return {name: (gradient / scale).to(gradient.dtype) for name, gradient in present.items()}


@contextmanager
def _collect_outputs() -> Iterator[dict[str, torch.Tensor]]:
    """Collects the output of every layer that runs within the context, and makes each output retain its gradient."""
    outputs: dict[str, torch.Tensor] = {}

    def gather(name: str, output: torch.Tensor) -> torch.Tensor:
        if not output.requires_grad:
            output.requires_grad_()  # outputs before the first parameter
        if name not in outputs:  # not the second run of a recomputed segment
            output.retain_grad()
            outputs[name] = output
        return output

    with watched_by(gather):
        yield outputs


class AutogradRun(StatefulRun):
    """One run on a device.

    Attributes:
        calls: forwards of each segment.
    """

    loop: EagerLoop
    compiling: Mapping[str, object] = {"jit_compile": False}

    def __init__(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None, device: str) -> None:
        self._device = device
        self.calls: list[int] = []
        with self.scope():
            with dtype_policy(policy_of(recipe.precision)):
                bound = NetworkBuilder(self._counter).build(model, recipe.seed, recipe.recompute)
            bound.load(model.weights(recipe.seed) if weights is None else weights)
            optimizer = make_optimizer(recipe, bound.variables, BACKEND)
            optimizer.build(list(bound.variables.values()))
            super().__init__(model, recipe, bound, optimizer)
            self.loop = EagerLoop(model, bound, optimizer, recipe.separate_losses)
        if settings.has_peak(device):
            settings.module(device).reset_peak_memory_stats()

    def _counter(self, number: int | None) -> Begins:
        if number is None:
            return lambda _: None  # do not count inner segments
        self.calls.append(0)
        return partial(self._begins, number)

    def _begins(self, number: int, _: torch.Tensor) -> None:
        self.calls[number] += 1

    @contextmanager
    def scope(self) -> Iterator[None]:
        with keras.device(self._device):
            yield

    def value(self, variable: keras.Variable) -> Array:
        return to_array(variable.value)

    def array(self, tensor: torch.Tensor) -> Array:
        return to_array(tensor)

    def scaler_settings(self) -> dict[str, float]:
        with self.scope():
            return scaler_settings(self.optimizer, BACKEND)

    def segment_calls(self) -> tuple[int, ...]:
        return tuple(self.calls)

    def save(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        window = torch.from_numpy(rows_of(self.ledger.micro_batches))
        torch.save(self._parts() | {"window": window}, path / FILE)

    def restore(self, path: Path) -> None:
        file = path / FILE
        with self.scope():
            own = self._parts()
            try:
                saved = torch.load(file, map_location="cpu", weights_only=True)
                same_parts(file, saved, [*own, "window"])
                for part in ("seeds", "optimizer"):
                    same_parts(file, saved[part], own[part])
                self.bound.network.load_state_dict(saved["model"] | self._state_of_seeds())
                moments = {name.partition("-")[0]: value for name, value in saved["optimizer"].items()}
                self.optimizer.load_own_variables(moments)
                for layer, seed in self.bound.seeds.items():
                    seed.state.assign(saved["seeds"][layer])
            except Exception as error:
                raise ValueError(f"{file} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
        window = micro_batches_of(saved["window"].tolist())
        self.ledger.replace(window, sum(micro.items for micro in window))

    def _state_of_seeds(self) -> dict[str, Any]:
        """The entries of the model's `state_dict` that hold states of seed generators."""
        paths = tuple(seed.state.path for seed in self.bound.seeds.values())
        return {key: value for key, value in self.bound.network.state_dict().items() if paths and key.endswith(paths)}

    def _parts(self) -> dict[str, dict[str, Any]]:
        """Every variable of the run by part and name."""
        store: dict[str, Any] = {}
        self.optimizer.save_own_variables(store)
        names = [variable.name for variable in self.optimizer.variables]
        seeds = self._state_of_seeds()
        return {
            "model": {key: value for key, value in self.bound.network.state_dict().items() if key not in seeds},
            "seeds": {path: seed.state.value for path, seed in self.bound.seeds.items()},
            "optimizer": {f"{index}-{names[int(index)]}": to_tensor(value, "cpu") for index, value in store.items()},
        }

    def saved_bytes(self, batch: Batch) -> int:
        seeds = [seed.state for seed in self.bound.seeds.values()]
        moving = [variable.value for variable in (*self.bound.buffers.values(), *seeds)]
        with self.scope():
            counter = SavedBytes(lambda: [*self.bound.network.parameters(), torch.from_numpy(batch.inputs)])
            with torch.no_grad():
                unmoved = put_back(moving, self.calls)
            with unmoved, counter.counting():
                self.loop.losses(batch)
        return counter.bytes()

    def peak_bytes(self) -> int:
        if not settings.has_peak(self._device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(settings.module(self._device).max_memory_allocated())


def _has_peak() -> bool:
    scalars(1)
    return torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0


def _can_distribute() -> bool:
    """Returns whether Keras' data parallelism accepts devices of this backend."""
    keras.distribution.DataParallel(devices=keras.distribution.list_devices())
    return True


class KerasOnTorch(ScopeOfPolicies, StackFramework):
    """Training with Keras alone."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"keras-backend": keras.config.backend()}

    def refusals(self) -> Mapping[Capability, str]:
        here = REFUSED | dict.fromkeys(_RANKS, _DISTRIBUTION) | {Capability.AUTOCAST_LISTS: NO_LISTS}
        return here | (_CPU_REFUSED if self.device == "cpu" else {})

    def supported_capabilities(self) -> Collection[Capability]:
        return SUPPORTED | {Capability.SAVED_BYTES}

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**self.library_attempts(), **shipped_attempts(self.parts())}

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        tried = keras_attempts(BACKEND, lambda model, recipe: self.run(model, recipe, None))
        tried |= {Capability.PEAK_BYTES: _has_peak, **dict.fromkeys(_RANKS, _can_distribute)}
        return {capability: partial(self._here, attempt) for capability, attempt in tried.items()}

    def _here(self, attempt: Attempt) -> bool:
        with keras.device(self.device):
            return attempt()

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        return {"optimizers": KerasOptimizers}

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> AutogradRun:
        return AutogradRun(model, recipe, weights, self.device)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with keras.device(self.device):
            return super().run_op(op, *arrays)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        with keras.device(self.device):
            return differentiate_case(case, x, w, self.remat(variant), device=self.device)

    def global_state(self) -> dict[str, str]:
        return super().global_state() | read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        write_settings(state)
