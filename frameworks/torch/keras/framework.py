"""Keras on PyTorch, on one device, and attempts with Keras' own calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import keras
import torch

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, Recipe
from frameworks.base import BaseShipped, shipped_attempts
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    FunctionFormat,
    OpResult,
    Part,
    RecomputeCase,
    RecomputeResult,
)
from frameworks.keras_common.layers import VARIANTS, WAYS
from frameworks.keras_common.operations import NO_LISTS, OF_SCOPES, Function, ScopeOfPolicies, wrap_in_remat
from frameworks.keras_common.optimizers import KerasOptimizers, has_factors_of, option_attempts
from frameworks.keras_common.probes import CONVENTIONS, OF_POLICIES, REFUSED, SUPPORTED, optimizer_attempts
from frameworks.keras_common.settings import read_settings, scalars, write_settings
from frameworks.torch.core.layers import differentiate_case
from frameworks.torch.keras.trainer import BACKEND, AutogradRun
from frameworks.torch.stacks.framework import StackFramework

_NO_PEAK = "PyTorch counts a GPU's allocations, and none of a CPU's"
_DISTRIBUTION = "keras.distribution is implemented for Keras on JAX alone"
_RANKS = (
    Capability.RANKS_REPLICATED,
    Capability.RANKS_OPTIMIZER,
    Capability.RANKS_GRADIENTS,
    Capability.RANKS_FULL,
    Capability.RANKS_HYBRID,
)


def _peak() -> bool:
    scalars(1)
    return torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0


def _can_distribute() -> bool:
    """Whether Keras' data parallelism takes this backend's devices."""
    devices = keras.distribution.list_devices()
    keras.distribution.DataParallel(devices=devices)
    return True


def _call_on(device: str, attempt: Attempt) -> bool:
    with keras.device(device):
        return attempt()


_OWN: dict[Capability, Attempt] = {Capability.PEAK_BYTES: _peak, **dict.fromkeys(_RANKS, _can_distribute)}


class KerasOnTorch(ScopeOfPolicies, StackFramework):
    """Training with Keras alone."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"keras-backend": keras.config.backend()}

    def refusals(self) -> Mapping[Capability, str]:
        """Unsupported capabilities on this device, with reasons."""
        own = dict.fromkeys(_RANKS, _DISTRIBUTION) | {Capability.AUTOCAST_LISTS: NO_LISTS}
        return REFUSED | own | ({Capability.PEAK_BYTES: _NO_PEAK} if self.device == "cpu" else {})

    def supported_capabilities(self) -> Collection[Capability]:
        return SUPPORTED | {Capability.SAVED_BYTES}

    def attempts(self) -> Mapping[Capability, Attempt]:
        options = option_attempts(lambda model, recipe: self.run(model, recipe, None))
        return {**self.library_attempts(), **OF_SCOPES, **options, **shipped_attempts(self.parts())}

    def library_attempts(self) -> Mapping[Capability, Attempt]:
        every = OF_POLICIES | optimizer_attempts(BACKEND) | _OWN
        return {capability: partial(_call_on, self.device, attempt) for capability, attempt in every.items()}

    def conventions(self) -> Conventions:
        return CONVENTIONS

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        return {"optimizers": KerasOptimizers}

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return WAYS

    def require_recipe(self, recipe: Recipe) -> None:
        super().require_recipe(recipe)
        if isinstance(recipe.scaling, DynamicScaling) and not has_factors_of(recipe.scaling):
            raise self.refusal(Capability.SCALING_FACTORS)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> AutogradRun:
        return AutogradRun(model, recipe, weights, self.device)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with keras.device(self.device):
            return super().run_op(op, *arrays)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        chosen = self.variant(variant)

        def run(function: Function, *args: Any, **named: Any) -> torch.Tensor:
            return wrap_in_remat(function, chosen)(*args, **named)

        with keras.device(self.device):
            return differentiate_case(case, x, w, run, self.device)

    def global_state(self) -> dict[str, str]:
        return super().global_state() | read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        super().restore_global_state(state)
        write_settings(state)
