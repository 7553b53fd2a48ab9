"""The framework under test, the oracle that follows its conventions, and helpers of tests that use both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from conformance.oracle import errormodel
from conformance.oracle.bound import Bound
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.contract import Capability, Conventions, Framework, RankGroup, Trainer, Unsupported, model_needs
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.rounding import Exact
from frameworks.ways import Way

Rule = TypeVar("Rule")


@dataclass(frozen=True)
class Profile:
    """The number of cases that property tests generate, and their seed.

    Attributes:
        factor: multiplier of the number of cases.
        seed: seed of the cases, None for the session's seed.
        shrinking_s: time limit for shrinking a failing case, in seconds.
    """

    factor: int = 1
    seed: int | None = None
    shrinking_s: float = 5.0


@dataclass(frozen=True)
class Subject:
    """A framework on its device and in its mode.

    Attributes:
        seed: seeds weights and data of every test.
        ways: the ways of techniques for recipes that choose none.
    """

    framework: Framework
    seed: int = 0
    profile: Profile = Profile()
    ways: tuple[Way, ...] = ()

    @property
    def conventions(self) -> Conventions:
        """The conventions that the framework declares."""
        return self.framework.conventions()

    def complete_recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the session's seed, and with its ranks, offload and ways where the recipe has none."""
        always = self.framework
        return recipe.replace(
            ways=recipe.ways or tuple(str(way) for way in self.ways if recipe.uses(way.technique)),
            seed=recipe.seed + self.seed,
            ranks=recipe.ranks or always.ranks(),
            offload=recipe.offload or always.offload(),
        )

    def in_place(self, recipe: Recipe) -> Recipe:
        """Return the recipe without offload, ways and implementation of the optimizer, which change no value."""
        return self.complete_recipe(recipe).replace(offload=None, implementation="default", tensor_rate=False, ways=())

    def envelope(self, model: Model, recipe: Recipe, windows: Sequence[Window]) -> errormodel.Envelope:
        """Return the envelope of correct runs of this recipe under the framework's conventions."""
        return errormodel.envelope(self.conventions, model, self.in_place(recipe), windows)

    def quality(self, model: Model, recipe: Recipe, windows: Sequence[Window], test: Batch) -> tuple[float, Bound]:
        """Return the accuracy on `test` after training by this recipe, and the bound of a correct run's distance."""
        return errormodel.quality(self.conventions, model, self.in_place(recipe), windows, test)

    def evaluation(
        self, model: Model, recipe: Recipe, windows: Sequence[Window], inputs: Array
    ) -> dict[str, tuple[Array, Bound]]:
        """Return running statistics and outputs of the exact run of this recipe, each with its bound."""
        return errormodel.evaluation(self.conventions, model, self.in_place(recipe), windows, inputs)

    def state(self, trainer: Trainer) -> dict[str, Array]:
        """Return the run's full state, including the process-wide settings."""
        settings = {f"global/{name}": np.array(value) for name, value in self.framework.global_state().items()}
        return trainer.state() | settings

    def trainer(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:
        """Start a run of the framework with the session's seed.

        Raises:
            Unsupported: the model or the recipe needs an unsupported capability.
        """
        need(self, *model_needs(model))
        return self.framework.trainer(model, self.complete_recipe(recipe), weights)

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> RankGroup:
        """Start a run of the framework on several ranks, with the session's seed.

        Raises:
            Unsupported: the model or the recipe needs an unsupported capability.
        """
        need(self, *model_needs(model))
        return self.framework.rank_group(model, self.complete_recipe(recipe), weights)

    def oracle(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:
        """Start the run of `trainer` on the float64 reference, with the framework's conventions and no rounding."""
        reference = ReferenceFramework("cpu", conventions=self.conventions, rounding=Exact())
        return reference.trainer(model, self.in_place(recipe), weights)


def supports(framework: Framework, *capabilities: Capability) -> bool:
    """Return whether a framework declares all of these as supported."""
    return all(framework.declares(capability).supported for capability in capabilities)


def need(subject: Subject, *capabilities: Capability | None) -> None:
    """End the test unless the framework declares all of these capabilities as supported.

    Raises:
        Unsupported: a capability is not supported; the message is the declared reason.
    """
    for capability in capabilities:
        if capability is not None and not (declared := subject.framework.declares(capability)).supported:
            raise Unsupported(capability, declared.reason)


def need_rule(subject: Subject, capability: Capability, kind: type[Rule]) -> Rule:
    """Return the framework's rule of a kind; end the test unless the framework declares the capability as supported.

    Raises:
        Unsupported: it does not; the message is the declared reason.
    """
    need(subject, capability)
    return subject.framework.rule(kind)


def need_device(subject: Subject) -> None:
    """End the test on a CPU, and on a device whose allocator reports no peak.

    Raises:
        Unsupported: "no device", or the declared reason.
    """
    if subject.framework.device == "cpu":
        raise Unsupported(Capability.PEAK_BYTES, "no device")
    need(subject, Capability.PEAK_BYTES)


def full(trainer: Trainer, value: float) -> dict[str, Array]:
    """Return a gradient for every parameter, filled with `value`, in the parameter's shape and format."""
    return {name: np.full_like(array, value) for name, array in trainer.parameters().items()}


def spike_gradients(trainer: Trainer, value: float, name: str | None = None, base: float = 0.0) -> dict[str, Array]:
    """Return gradients of `base` with `value` in the last element of `name` (by default the last parameter)."""
    gradients = full(trainer, base)
    gradients[name or list(gradients)[-1]].reshape(-1)[-1] = value
    return gradients
