"""One training run with Keras on PyTorch, and its checkpoints in one file of `torch.save`.

The file is a dictionary of the user's, as in PyTorch's tutorial on checkpoints. A Keras model on PyTorch is a
`torch.nn.Module` with a `state_dict`, and Keras gives an optimizer's variables by `save_own_variables`. Seeds have a
part of their own, because a `state_dict` names them by the order in which the process made them. The names of the
optimizer's variables are compared, of which `load_own_variables` compares the count and only warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import torch

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.base import same_parts
from frameworks.contract import Capability
from frameworks.keras_common.micro_batches import micro_batches_of, rows_of
from frameworks.keras_common.network import Begins, NetworkBuilder
from frameworks.keras_common.optimizers import make_optimizer
from frameworks.keras_common.scaler import scaler_settings
from frameworks.keras_common.settings import dtype_policy, policy_of
from frameworks.keras_common.stateful_run import StatefulRun
from frameworks.torch.core import devices
from frameworks.torch.core.arrays import to_array, to_tensor
from frameworks.torch.core.saved_bytes import SavedBytes, put_back
from frameworks.torch.keras.loop import BACKEND, EagerLoop

FILE = "run.pt"


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
            return lambda _: None  # an inner segment is part of another one
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
        """The entries of the model's `state_dict` that are states of seed generators."""
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
            "optimizer": {f"{place}-{names[int(place)]}": to_tensor(value, "cpu") for place, value in store.items()},
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
        if not devices.has_peak(self._device):
            raise self.refusal(Capability.PEAK_BYTES)
        return int(devices.module(self._device).max_memory_allocated())
