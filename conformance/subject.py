"""The framework under judgement, as a test sees it, beside the oracle that follows its conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Conventions, Framework, Trainer, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.rounding import Exact


@dataclass(frozen=True)
class Subject:
    """A framework on its device and in its mode; `seed` seeds weights and data of every test."""

    framework: Framework
    seed: int = 0

    @property
    def conventions(self) -> Conventions:
        """What the framework declares to do in its own way."""
        return self.framework.conventions()

    def trainer(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:  # noqa: B008
        """A run of the framework from the session's seed."""
        return self.framework.trainer(model, recipe.but(seed=recipe.seed + self.seed), weights)

    def oracle(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:  # noqa: B008
        """The same run on the float64 reference, with the framework's conventions and no rounding."""
        reference = ReferenceFramework("cpu", conventions=self.conventions, rounding=Exact())
        return reference.trainer(model, recipe.but(seed=recipe.seed + self.seed), weights)


def need(subject: Subject, *capabilities: Capability | None) -> None:
    """Leaves the test if the framework declares that it does not do one of these here.

    Raises:
        Unsupported: with the declared reason.
    """
    for capability in capabilities:
        if capability is not None and not (declared := subject.framework.declares(capability)).supported:
            raise Unsupported(capability, declared.reason)


def full(trainer: Trainer, value: float) -> dict[str, Array]:
    """A gradient for every parameter, filled with `value`, in the parameter's shape and format."""
    return {name: np.full_like(array, value) for name, array in trainer.parameters().items()}


def spiked(trainer: Trainer, value: float, name: str | None = None, base: float = 0.0) -> dict[str, Array]:
    """Gradients of `base` with `value` in the last element of parameter `name` (the model's last without a name)."""
    gradients = full(trainer, base)
    gradients[name or list(gradients)[-1]].reshape(-1)[-1] = value
    return gradients
