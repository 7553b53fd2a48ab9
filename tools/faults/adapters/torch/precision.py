"""Faults of autocast, master weights and the formats of optimizers in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.torch import TorchFramework
from frameworks.torch.core.arrays import DTYPES
from frameworks.torch.core.operations import OPERATIONS
from frameworks.torch.training.trainer import TorchTrainer
from tools.faults import fault


@fault(
    "https://github.com/pytorch/pytorch/issues/125186",
    "autocast.matmul-is-low",
    "autocast.backward-in-forward-precision",
)
class ScopeForgetsFormat(TorchFramework):
    """`torch.autocast` runs in the device's default format, whatever format was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        scope = torch.autocast
        torch.autocast = lambda device, dtype=None, enabled=True: scope(device, enabled=enabled)


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "autocast.scope-restored")
class ScopeLeaksThroughExceptions(TorchFramework):
    """`torch.autocast` restores nothing when an exception leaves its scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        leave = torch.autocast.__exit__

        def careless(self: torch.autocast, kind: Any, *rest: Any) -> Any:
            return None if kind is not None else leave(self, kind, *rest)

        torch.autocast.__exit__ = careless


def unlisted(function: Any, *args: Any, **named: Any) -> torch.Tensor:
    """The function in the format of its arguments, whatever scope is open."""
    with torch.autocast("cpu", enabled=False):
        return function(*args, **named)


@fault("https://github.com/pytorch/pytorch/pull/82196", "autocast.loss-is-wide")
class LossInLowPrecision(TorchFramework):
    """Losses are on no list of operations that run wide, so they keep the format of their inputs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for name in ("cross_entropy", "mse_loss"):
            setattr(functional, name, partial(unlisted, getattr(functional, name)))
        OPERATIONS.update(cross_entropy=functional.cross_entropy, squared_error=functional.mse_loss)


@fault("https://github.com/pytorch/ao/pull/1124", "master.small-update-survives", "autocast.parameters-stay-float32")
class CastsWeights(TorchFramework):
    """Level O1 casts the module itself, so small updates vanish in low-precision weights."""

    def trainer(self, model: Model, recipe: Recipe, weights: dict[str, Array] | None = None) -> TorchTrainer:
        trainer = super().trainer(model, recipe, weights)
        if recipe.precision.level == "O1":
            trainer.network.to(DTYPES[recipe.precision.format])
        return trainer


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(TorchFramework):
    """Adam's epsilon is rounded to float16, where it is zero."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        make = torch.optim.Adam.__init__

        def rounded(self: torch.optim.Adam, *given: Any, eps: float = 1e-8, **named: Any) -> None:
            make(self, *given, eps=float(torch.tensor(eps, dtype=torch.float16)), **named)

        torch.optim.Adam.__init__ = rounded
