"""Base of the modes that train by a library on top of PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib.metadata import version

import torch

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseCompany
from frameworks.contract import Attempt, Capability, OpResult, PostTraining, RecomputeCase, RecomputeResult
from frameworks.torch.framework import TorchFramework
from frameworks.torch.libraries import STACKS
from frameworks.torch.probes import attempts
from frameworks.torch.trainer import TorchTrainer

_NOT_OF_TRAINING = frozenset(
    {
        Capability.AUTOCAST_SCOPE,
        Capability.AUTOCAST_LISTS,
        Capability.OPERATIONS,
        Capability.RECOMPUTE_CASES,
        Capability.TF32,
    }
)
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
        of_training = attempts(self.device, self.mode).keys() - _NOT_OF_TRAINING
        return {c: reason for c, reason in super().refusals().items() if c in of_training} | dict(self.refused())

    def refused(self) -> Mapping[Capability, str]:
        """What the library lacks and PyTorch has, with reasons."""
        return {}

    def attempts(self) -> Mapping[Capability, Attempt]:
        own = {c: each for c, each in attempts(self.device, self.mode).items() if c not in _NOT_OF_TRAINING}
        return {**own, **self.library_attempts()}

    @abstractmethod
    def library_attempts(self) -> Mapping[Capability, Attempt]:
        """The library's own call for what it offers or lacks, without this adapter's guards."""

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TorchTrainer:
        self.require_recipe(recipe)
        return self.bound(self.run(model, recipe, weights))

    @abstractmethod
    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> TorchTrainer:
        """A run of a recipe that only asks for what is declared."""

    def company(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseCompany:
        raise self.refusal(Capability.RANKS_REPLICATED)

    def post_training(self) -> PostTraining:
        raise self.refusal(Capability.DYNAMIC_INT8)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        raise self.refusal(Capability.OPERATIONS)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        raise self.refusal(Capability.RECOMPUTE_CASES)
