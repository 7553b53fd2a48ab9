"""One training run with Keras on PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import keras
import torch

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.contract import Capability
from frameworks.keras_common.network import Begins, NetworkBuilder
from frameworks.keras_common.optimizers import make_optimizer
from frameworks.keras_common.scaler import scaler_settings
from frameworks.keras_common.settings import dtype_policy, policy_of
from frameworks.keras_common.stateful_run import StatefulRun
from frameworks.torch.core import devices
from frameworks.torch.core.arrays import to_array
from frameworks.torch.core.saved_bytes import SavedBytes, put_back
from frameworks.torch.keras import checkpoint
from frameworks.torch.keras.backend import BACKEND
from frameworks.torch.keras.loop import EagerLoop


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
        if devices.has_peak(device):
            devices.module(device).reset_peak_memory_stats()

    def _counter(self, number: int | None) -> Begins:
        if number is None:
            return _uncounted
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
        checkpoint.save(self.bound, self.optimizer, self.ledger.micro_batches, path)

    def restore(self, path: Path) -> None:
        with self.scope():
            window = checkpoint.restore(self.bound, self.optimizer, path)
        self.ledger.replace(window, sum(micro.items for micro in window))

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
        if not devices.has_peak(self._device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(devices.module(self._device).max_memory_allocated())


def _uncounted(_: torch.Tensor) -> None:
    """An inner segment is part of another one."""
