"""A whole run in one file of `torch.save`: a dictionary of the user's, as in PyTorch's tutorial on checkpoints.

A Keras model on PyTorch is a `torch.nn.Module` with a `state_dict`, and Keras gives an optimizer's variables by
`save_own_variables`. Seeds have a part of their own, because a `state_dict` names them by the order in which the
process made them. The names of the optimizer's variables are compared, of which `load_own_variables` compares the count
and only warns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import torch

from frameworks.base import same_parts
from frameworks.keras_common.micro_batches import KerasMicroBatch, micro_batches_of, rows_of
from frameworks.keras_common.network import BuiltNetwork
from frameworks.torch.core.arrays import to_tensor

FILE = "run.pt"


def _of_seeds(bound: BuiltNetwork) -> dict[str, Any]:
    """The entries of the model's `state_dict` that are states of seed generators."""
    paths = tuple(seed.state.path for seed in bound.seeds.values())
    return {key: value for key, value in bound.network.state_dict().items() if paths and key.endswith(paths)}


def parts(bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer) -> dict[str, dict[str, Any]]:
    """Every variable of a run by part and name."""
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    names = [variable.name for variable in optimizer.variables]
    seeds = _of_seeds(bound)
    return {
        "model": {key: value for key, value in bound.network.state_dict().items() if key not in seeds},
        "seeds": {path: seed.state.value for path, seed in bound.seeds.items()},
        "optimizer": {f"{place}-{names[int(place)]}": to_tensor(value, "cpu") for place, value in store.items()},
    }


def save(
    bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, window: Sequence[KerasMicroBatch], path: Path
) -> None:
    """Writes the run and its open window below the folder `path`, which is created if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    torch.save(parts(bound, optimizer) | {"window": torch.from_numpy(rows_of(window))}, path / FILE)


def restore(bound: BuiltNetwork, optimizer: keras.optimizers.Optimizer, path: Path) -> list[KerasMicroBatch]:
    """Restores what `save` wrote, each part by its own call; returns the open window.

    Raises:
        ValueError: the file cannot be read, has other parts than the run, or PyTorch or Keras refuses one of them.
    """
    file, own = path / FILE, parts(bound, optimizer)
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        same_parts(file, saved, [*own, "window"])
        for part in ("seeds", "optimizer"):
            same_parts(file, saved[part], own[part])
        bound.network.load_state_dict(saved["model"] | _of_seeds(bound))
        optimizer.load_own_variables({name.partition("-")[0]: value for name, value in saved["optimizer"].items()})
        for layer, seed in bound.seeds.items():
            seed.state.assign(saved["seeds"][layer])
    except Exception as error:
        raise ValueError(f"{file} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    return micro_batches_of(saved["window"].tolist())
