"""What demonstrations share: their type, small batches, and a run that is saved and goes on in another one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Model
from fixtures.recipe import Recipe
from frameworks.contract import Trainer
from frameworks.reference import ReferenceFramework

Seen = dict[str, Array]
"""Observable results by name."""

Demonstration = Callable[[ReferenceFramework], Seen]


def ones_batch(size: int = 4, width: int = 64, outputs: int = 1) -> Batch:
    """Inputs of ones and targets of zeros."""
    return Batch(np.ones((size, width), np.float32), {"output": np.zeros((size, outputs), np.float32)})


def heads_batch(*heads: str, size: int = 8, width: int = 8, seed: int = 0) -> Batch:
    """A batch for two heads that has the targets of these heads."""
    rng = np.random.default_rng([seed, 7])
    inputs = rng.standard_normal((size, width)).astype(np.float32)
    return Batch(inputs, {head: rng.standard_normal((size, 2)).astype(np.float32) for head in heads})


def filled(model: Model, value: float, *left_out: str) -> Seen:
    """A gradient of one value for every parameter of which no part of the name is left out."""
    shapes = model.parameter_shapes().items()
    return {n: np.full(s, value) for n, s in shapes if not any(part in n for part in left_out)}


def resumed(framework: ReferenceFramework, run: Trainer, model: Model, recipe: Recipe) -> Trainer:
    """A new run that has loaded what another one saved."""
    other = framework.trainer(model, recipe)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    return other


def numbered(items: Any) -> Seen:
    """The entries of mappings of arrays, each with the number of its mapping before its name."""
    return {f"{place}/{name}": np.asarray(value) for place, each in enumerate(items) for name, value in each.items()}
