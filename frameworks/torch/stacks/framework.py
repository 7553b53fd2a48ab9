"""Base of the modes that train by a library on top of PyTorch."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.models import scalar
from fixtures.recipe import Adam, Implementation, Precision, Recipe
from frameworks.base import BaseRankGroup, BaseTrainer
from frameworks.contract import Attempt, Capability, OpResult, PostTraining, RecomputeCase, RecomputeResult
from frameworks.torch.declarations import TRAINING
from frameworks.torch.framework import TorchFramework
from frameworks.torch.libraries import STACKS
from frameworks.torch.probes import attempts
from frameworks.torch.training import implementations
from frameworks.torch.training.optimizers import IMPLEMENTATIONS
from frameworks.torch.training.trainer import TorchTrainer

_NOT_OF_TRAINING = frozenset({Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS, Capability.TF32})
"""Parts of PyTorch that no library's training loop replaces."""


class StackFramework(TorchFramework):
    """A library's training loop.

    Formats, operations, quantizers and ranks of PyTorch itself are judged in its own modes, and not offered here.
    """

    def version(self) -> str:
        """PyTorch's version with the library's in its local label, such as "2.13.0+cpu.accelerate.1.15.0"."""
        library = STACKS[self.mode].library
        own = str(torch.__version__)
        return f"{own}{'.' if '+' in own else '+'}{library}.{version(library)}"

    def environment(self) -> dict[str, str]:
        library = STACKS[self.mode].library
        return super().environment() | {library: version(library)}

    def refusals(self) -> Mapping[Capability, str]:
        of_training = (attempts(self.device, self.mode).keys() | self._choices.keys()) - _NOT_OF_TRAINING
        return {c: reason for c, reason in super().refusals().items() if c in of_training} | dict(self.refused())

    of_library: frozenset[Capability] = frozenset()
    """What the library has and PyTorch lacks."""

    def refused(self) -> Mapping[Capability, str]:
        """What the library lacks and PyTorch has, with reasons."""
        return {}

    def supported(self) -> Collection[Capability]:
        return TRAINING | {Capability.PLAIN_LOOP} | self.of_library

    def attempts(self) -> Mapping[Capability, Attempt]:
        own = {c: each for c, each in attempts(self.device, self.mode).items() if c not in _NOT_OF_TRAINING}
        own |= {c: partial(self._steps_by, name) for c, name in self._choices.items()}
        return {**own, **self.library_attempts()}

    @property
    def takes_any_optimizer(self) -> bool:
        """Whether the mode is judged with each implementation of an optimizer."""
        return True

    @property
    def _choices(self) -> Mapping[Capability, Implementation]:
        return implementations.CHOICES if self.takes_any_optimizer else {}

    def _steps_by(self, name: Implementation) -> bool:
        """Whether the library steps an optimizer of this implementation; warnings are about so small a run."""
        with warnings.catch_warnings(action="ignore"):
            trainer = self.run(scalar(1.0), Recipe(Adam(0.5), implementation=name), None)
            assert isinstance(trainer, TorchTrainer)
            before = trainer.parameters()
            trainer.apply_gradients({parameter: np.ones_like(value) for parameter, value in before.items()})
        settings = trainer.steppers[0].optimizer.param_groups[0]
        moved = all((value < before[parameter]).all() for parameter, value in trainer.parameters().items())
        return moved and all(settings[key] is on for key, on in IMPLEMENTATIONS[name].items())

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        return self.bound(TorchTrainer(model, recipe, weights, self.device, TorchFramework.modes[0]))

    @abstractmethod
    def library_attempts(self) -> Mapping[Capability, Attempt]:
        """The library's own call for what it lacks or may ignore, without this adapter's guards."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseTrainer:
        self.require_recipe(recipe)
        self.require_clipping(recipe)
        implementations.require(model, recipe, self.device)
        return self.bound(self.run(model, recipe, weights))

    @abstractmethod
    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> BaseTrainer:
        """A run of a recipe that only asks for what is declared."""

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        raise self.refusal(Capability.RANKS_REPLICATED)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {kind: make for kind, make in super().rules().items() if kind is not PostTraining}

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        raise self.refusal(Capability.AUTOCAST_SCOPE)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        raise self.refusal(Capability.OPERATIONS)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        raise self.refusal(Capability.RECOMPUTE_CASES)
