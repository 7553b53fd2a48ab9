"""Faults of the precision scope: whether it acts at all, how far it reaches, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear
from fixtures.recipe import FLOAT16, FLOAT32, Precision, Recipe
from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core import scope
from frameworks.reference.core.scope import Scope
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

# whether it acts


@fault(
    "https://github.com/PaddlePaddle/Paddle/pull/35927",
    "autocast.matmul-is-low",
    "autocast.request-is-honoured-or-refused",
)
class ScopeIsInert(ReferenceFramework):
    """The scope does nothing on this device and says nothing."""

    def autocast(self, precision: Precision, **_: Any) -> AbstractContextManager[None]:
        del precision
        return nullcontext()

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.AUTOCAST_SCOPE: self._casts}

    def _casts(self) -> bool:
        with self.autocast(FLOAT16):
            return self.run_op("matmul", *CATALOGUE["matmul"]()).dtype == "float16"


@fault("https://github.com/unslothai/unsloth-zoo/pull/962", "autocast.request-is-honoured-or-refused")
class TrainsInFloat32InSilence(ReferenceFramework):
    """A run in low precision is accepted and trains in float32."""

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> ReferenceTrainer:
        return super().run(model, recipe.replace(precision=FLOAT32), weights)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return {**super().attempts(), Capability.O1_FLOAT16: self._trains_low}

    def _trains_low(self) -> bool:
        outputs = self.run(exact_linear(), Recipe(precision=FLOAT16)).predict(exact_batch().inputs)
        return outputs["output"].dtype == np.float16


class PolicyOfAll:
    """Where `PolicyIsGlobal` keeps its policy."""

    latest = Scope()


@fault("https://github.com/keras-team/keras/pull/20014", "autocast.policy-does-not-leak")
class PolicyIsGlobal(ReferenceTrainer):
    """The precision of the model that was made last holds for every model."""

    @property
    def scope(self) -> Scope:
        return PolicyOfAll.latest

    @scope.setter
    def scope(self, value: Scope) -> None:
        PolicyOfAll.latest = value


# how far it reaches


class _Scopes(ReferenceFramework):
    """A framework whose scopes are opened by `_open`."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        with scope.opened(wanted):
            yield

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        return self._open(Scope(precision, frozenset(wide), frozenset(low)) if enabled else Scope())


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "autocast.scope-restored", "autocast.settings-restored")
class ScopeStaysOpen(_Scopes):
    """The end of a scope leaves its setting behind."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        scope.enter(wanted)
        yield


@fault("https://github.com/PaddlePaddle/Paddle/pull/35927", "autocast.scope-restored", "autocast.settings-restored")
class FormatStaysBehind(_Scopes):
    """A scope writes its format to a process-wide setting that nobody puts back."""

    latest = "float32"

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        self.latest = wanted.precision.format
        with super()._open(wanted):
            yield

    def global_state(self) -> dict[str, str]:
        return super().global_state() | {"format": self.latest}

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        self.latest = state["format"]
        super().restore_global_state(state)


@fault("https://github.com/facebookresearch/fairscale/issues/1199", "autocast.scope-nests")
class InnerFormatIsIgnored(_Scopes):
    """A scope inside another keeps the outer one's format."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        outer = scope.current()
        with super()._open(outer if outer.active and wanted.active else wanted):
            yield


@fault("https://github.com/pytorch/pytorch/pull/71169", "autocast.nested-disable", "autocast.scope-nests")
class EndSwitchesOff(_Scopes):
    """The end of an inner scope switches mixed precision off instead of putting the outer setting back."""

    @contextmanager
    def _open(self, wanted: Scope) -> Iterator[None]:
        with super()._open(wanted):
            yield
        scope.enter(Scope())


@fault(
    "https://github.com/huggingface/accelerate/pull/1740", "autocast.nested-disable", "autocast.disabled-is-identity"
)
class DisabledIsIgnored(_Scopes):
    """A region that is to be switched off is opened like any other."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        del enabled
        return super().autocast(precision, wide=wide, low=low)
