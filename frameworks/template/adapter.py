"""The adapter of template. It offers no capability yet, so that nearly every test of the suites ends as `not offered`.

Grow it by one capability at a time: `supported_capabilities` names it, `trainer` makes a run that follows the recipe,
and the tests that need no more than that are judged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseFramework
from frameworks.contract import Attempt, Capability, Conventions, OpResult, RecomputeCase, RecomputeResult, Trainer


class TemplateAdapter(BaseFramework):
    """template on one device, in one mode."""

    name = "template"
    modes = ("eager",)

    def devices(self) -> tuple[str, ...]:
        """Add every accelerator that the framework sees, the preferred one last: "cuda" for a GPU of NVIDIA."""
        return ("cpu",)

    def version(self) -> str:
        """The framework's own version; it names the series of records."""
        return "0"

    def environment(self) -> dict[str, str]:
        """The device's model, and every switch of the framework that results depend on."""
        return {"device": self.device}

    def conventions(self) -> Conventions:
        """Documented conventions that differ from the defaults."""
        return Conventions()

    def supported_capabilities(self) -> Collection[Capability]:
        """The capabilities that this adapter offers."""
        return ()

    def refusals(self) -> Mapping[Capability, str]:
        """Capabilities that the framework does not have here, with one sentence each."""
        return {}

    def attempts(self) -> Mapping[Capability, Attempt]:
        """The framework's own call for each refused capability, and for what it may ignore: True if it took effect."""
        return {}

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """A new run, `self.bind(Run(...))` of a subclass of `frameworks.base.BaseTrainer`; without one, every recipe is
        refused.
        """
        self.require_recipe(recipe)
        raise self.refusal(Capability.FEED)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        """The operation `op` of `frameworks.operations` inside whatever precision scope is open."""
        raise self.refusal(Capability.OPERATIONS)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        """The cases of `frameworks.base.recompute` through the framework's recomputation call."""
        raise self.refusal(Capability.RECOMPUTE_CASES)
