"""The reference framework: NumPy in float64, autograd's reverse mode, low precision by rounding every result."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import version as package_version

import ml_dtypes
import numpy as np

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
    ScalerRule,
)
from frameworks.reference import catalogue, probes, recompute, scope, tape
from frameworks.reference.operations import Operations
from frameworks.reference.rounding import Nearest, Rounding
from frameworks.reference.trainer import ReferenceTrainer

CONVENTIONS = Conventions(scaler=ScalerRule(minimum=2.0**-14, maximum=2.0**127, latched=False))

VARIANTS = ("default",)

_REFUSED = {
    Capability.PEAK_BYTES: "the reference has no device allocator",
    Capability.TF32: "the reference multiplies in float64 and rounds what comes out",
}


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
        return {
            "autograd": package_version("autograd"),
            "blas": _blas(),
            "conventions": "own" if self._conventions == CONVENTIONS else "given",
            "machine": platform.machine(),
            "ml_dtypes": ml_dtypes.__version__,
            "numpy": np.__version__,
            "rounding": type(self.rounding).__name__,
        }

    def refusals(self) -> Mapping[Capability, str]:
        return _REFUSED

    def conventions(self) -> Conventions:
        return self._conventions

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self.require_recipe(recipe)
        operations = self.operations_class(self.rounding)
        return self.bound(self.trainer_class(model, recipe, self._conventions, operations, weights))

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return scope.opened(scope.Scope())
        return scope.opened(scope.Scope(precision, frozenset(wide), frozenset(low)))

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        return catalogue.run(self.operations_class(self.rounding), op, *arrays)

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        self.variant(variant)
        return recompute.run(self.operations_class(self.rounding), case, x, w)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {capability: partial(attempt, self) for capability, attempt in probes.ATTEMPTS.items()}

    def global_state(self) -> dict[str, str]:
        return {"autocast": scope.current().text(), "traces": str(tape.depth())}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        scope.enter(scope.parsed(state["autocast"]))
        tape.close_down_to(int(state["traces"]))


def _blas() -> str:
    """Name and version of the BLAS that NumPy was built with, "unknown" where NumPy does not say."""
    config = np.show_config(mode="dicts")
    found = (config or {}).get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()
