"""The reference framework: NumPy in float64, autograd's reverse mode, low precision by rounding every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Precision, Recipe
from frameworks.base import BaseFramework
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    OpResult,
    RecomputeCase,
    RecomputeResult,
)
from frameworks.reference import operations, probes, recompute, scope, settings
from frameworks.reference.arithmetic import Operations
from frameworks.reference.declarations import CONVENTIONS, REFUSALS, VARIANTS
from frameworks.reference.rounding import Nearest, Rounding
from frameworks.reference.trainer import ReferenceTrainer


class ReferenceFramework(BaseFramework):
    """The oracle. A broken twin replaces `trainer_class` or `operations_class`.

    Args:
        device: "auto" or "cpu".
        mode: "emulated".
        conventions: a framework's declared ways, which the reference then follows; its own by default.
        rounding: how results are brought to their formats; to nearest by default.
    """

    name = "reference"
    modes: tuple[str, ...] = ("emulated",)
    trainer_class: type[ReferenceTrainer] = ReferenceTrainer
    operations_class: type[Operations] = Operations

    def __init__(
        self,
        device: str = "auto",
        mode: str | None = None,
        *,
        conventions: Conventions | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(device, mode)
        self._conventions = conventions or CONVENTIONS
        self.rounding: Rounding = rounding or Nearest()

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def version(self) -> str:
        return "1"

    def environment(self) -> dict[str, str]:
        own = self._conventions == CONVENTIONS
        return settings.read_environment() | {
            "conventions": "own" if own else "given",
            "rounding": type(self.rounding).__name__,
        }

    def refusals(self) -> Mapping[Capability, str]:
        return REFUSALS

    def conventions(self) -> Conventions:
        return self._conventions

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self.require_recipe(recipe)
        ops = self.operations_class(self.rounding, self._conventions.variance)
        return self.bound(self.trainer_class(model, recipe, self._conventions, ops, weights))

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return scope.opened(scope.Scope())
        return scope.opened(scope.Scope(precision, frozenset(wide), frozenset(low)))

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        return operations.run(self.operations_class(self.rounding), op, *arrays)

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        self.variant(variant)
        return recompute.run(self.operations_class(self.rounding), case, x, w)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {capability: partial(attempt, self) for capability, attempt in probes.ATTEMPTS.items()}

    def global_state(self) -> dict[str, str]:
        return settings.read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        settings.write_settings(state)
