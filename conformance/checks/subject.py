"""The framework under test, and the oracle that follows its conventions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Profile:
    """How many cases property tests generate.

    Attributes:
        factor: how many times as many cases are drawn.
        seed: what they are drawn from, None for the session's seed.
        shrinking_s: how long a failing case is made smaller, in seconds.
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
        """The recipe at the session's seed, with the ranks, offload and ways of the session where it names none."""
        always = self.framework
        return recipe.replace(
            ways=recipe.ways or tuple(str(way) for way in self.ways if recipe.uses(way.technique)),
            seed=recipe.seed + self.seed,
            ranks=recipe.ranks or always.ranks(),
            offload=recipe.offload or always.offload(),
        )

    def in_place(self, recipe: Recipe) -> Recipe:
        """The same without offload, ways and a chosen implementation of the optimizer, which change no value."""
        return self.complete_recipe(recipe).replace(offload=None, implementation="default", tensor_rate=False, ways=())

    def envelope(self, model: Model, recipe: Recipe, windows: Sequence[Window]) -> errormodel.Envelope:
        """Where a correct run of this recipe may end up, under the framework's conventions."""
        return errormodel.envelope(self.conventions, model, self.in_place(recipe), windows)

    def quality(self, model: Model, recipe: Recipe, windows: Sequence[Window], test: Batch) -> tuple[float, Bound]:
        """Accuracy that a correct run of this recipe ends with, and how far from it another may be."""
        return errormodel.quality(self.conventions, model, self.in_place(recipe), windows, test)

    def evaluation(
        self, model: Model, recipe: Recipe, windows: Sequence[Window], inputs: Array
    ) -> dict[str, tuple[Array, Bound]]:
        """Running statistics and outputs that a correct run of this recipe has, and how far another may be."""
        return errormodel.evaluation(self.conventions, model, self.in_place(recipe), windows, inputs)

    def state(self, trainer: Trainer) -> dict[str, Array]:
        """The run's full state, with the process-wide settings."""
        settings = {f"global/{name}": np.array(value) for name, value in self.framework.global_state().items()}
        return trainer.state() | settings

    def trainer(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:
        """A run of the framework from the session's seed.

        Raises:
            Unsupported: the model or the recipe needs an unsupported capability.
        """
        need(self, *model_needs(model))
        return self.framework.trainer(model, self.complete_recipe(recipe), weights)

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> RankGroup:
        """The ranks of a run of the framework from the session's seed.

        Raises:
            Unsupported: the model or the recipe needs an unsupported capability.
        """
        need(self, *model_needs(model))
        return self.framework.rank_group(model, self.complete_recipe(recipe), weights)

    def oracle(self, model: Model, recipe: Recipe = Recipe(), weights: Mapping[str, Array] | None = None) -> Trainer:
        """The same run on the float64 reference, with the framework's conventions and no rounding."""
        reference = ReferenceFramework("cpu", conventions=self.conventions, rounding=Exact())
        return reference.trainer(model, self.in_place(recipe), weights)


def supports(framework: Framework, *capabilities: Capability) -> bool:
    """Whether a framework declares all of these as supported."""
    return all(framework.declares(capability).supported for capability in capabilities)


def need(subject: Subject, *capabilities: Capability | None) -> None:
    """Ends the test unless the framework declares all of these as supported.

    Raises:
        Unsupported: with the declared reason.
    """
    for capability in capabilities:
        if capability is not None and not (declared := subject.framework.declares(capability)).supported:
            raise Unsupported(capability, declared.reason)


def need_device(subject: Subject) -> None:
    """Ends the test on a CPU, and where the device's allocator reports no peak.

    Raises:
        Unsupported: "no device", or the declared reason.
    """
    if subject.framework.device == "cpu":
        raise Unsupported(Capability.PEAK_BYTES, "no device")
    need(subject, Capability.PEAK_BYTES)


def full(trainer: Trainer, value: float) -> dict[str, Array]:
    """A gradient for every parameter, filled with `value`, in the parameter's shape and format."""
    return {name: np.full_like(array, value) for name, array in trainer.parameters().items()}


def spike_gradients(trainer: Trainer, value: float, name: str | None = None, base: float = 0.0) -> dict[str, Array]:
    """Gradients of `base` with `value` in the last element of parameter `name` (the model's last without a name)."""
    gradients = full(trainer, base)
    gradients[name or list(gradients)[-1]].reshape(-1)[-1] = value
    return gradients
