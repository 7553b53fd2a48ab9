"""The reference framework: NumPy in float64, autograd's reverse mode, low precision by rounding every result."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Precision, Recipe
from frameworks.base import BaseFramework
from frameworks.contract import (
    SUPPORTED,
    Capability,
    Conventions,
    Declaration,
    ScalerRule,
)
from frameworks.reference import scope
from frameworks.reference.ops import Operations
from frameworks.reference.rounding import Nearest, Rounding
from frameworks.reference.trainer import ReferenceTrainer

CONVENTIONS = Conventions(scaler=ScalerRule(minimum=2.0**-126, maximum=2.0**127, latched=False))


class ReferenceFramework(BaseFramework):
    """The oracle. A broken twin replaces `trainer_class` or `operations_class`.

    Args:
        device: "auto" or "cpu".
        mode: "emulated".
        conventions: a framework's declared ways, which the reference then follows; its own by default.
        rounding: how results are brought to their formats; to nearest by default.
    """

    name = "reference"
    modes = ("emulated",)
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
        return {"numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__, "machine": platform.machine()}

    def declares(self, capability: Capability) -> Declaration:
        if capability == Capability.PEAK_BYTES:
            return Declaration(False, "the reference has no device allocator")
        return SUPPORTED

    def conventions(self) -> Conventions:
        return self._conventions

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        self.require_recipe(recipe)
        return self.trainer_class(model, recipe, self._conventions, self.operations_class(self.rounding), weights)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return scope.opened(scope.Scope())
        return scope.opened(scope.Scope(precision, frozenset(wide), frozenset(low)))

    def global_state(self) -> dict[str, str]:
        return {"autocast": repr(scope.current())}
