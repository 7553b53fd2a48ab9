"""Keras on JAX as a framework of the suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseRankGroup, RankGroupTrainer, with_ranks
from frameworks.contract import Attempt, Capability, Conventions, Meshes, OpResult, RecomputeCase, RecomputeResult
from frameworks.jax.core.arrays import NO_PEAK, has_peak, wide_formats
from frameworks.jax.core.settings import KERAS, REFUSED_RANKS, OnDevice, device_workers, rank_group
from frameworks.jax.keras.steps import BACKEND
from frameworks.jax.keras.trainer import StatelessRun
from frameworks.jax.training.steps import differentiate_case
from frameworks.keras_common.framework import NO_LISTS, REFUSED, SUPPORTED, ScopeOfPolicies, keras_attempts
from frameworks.keras_common.settings import read_settings, write_settings
from frameworks.ranks import RemoteMeshes

_LAYOUT = (
    "Keras makes an optimizer's variables with the layout of their weight, and a LayoutMap's entries do not matter"
)
_REFUSED: dict[Capability, str] = {
    **REFUSED,
    Capability.AUTOCAST_LISTS: NO_LISTS,
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a variable that the loss does not reach, never nothing",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: NO_PEAK,
    Capability.RANKS_OPTIMIZER: _LAYOUT,
    Capability.RANKS_GRADIENTS: _LAYOUT,
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and keras.distribution has no setting for another one",
    **REFUSED_RANKS,
}


def _misses() -> bool:
    """Returns whether JAX gives no gradient for a weight on which the loss does not depend."""
    gradients: list[Any] = jax.grad(lambda own: 2.0 * own[0])([jnp.ones(()), jnp.ones(())])
    return gradients[1] is None


_rank_group = partial(rank_group, mode=KERAS)


class KerasFramework(ScopeOfPolicies, OnDevice):
    """Training with Keras alone: mode "keras"."""

    own_modes = (KERAS,)

    def version(self) -> str:
        return f"{jax.__version__}+keras.{version('keras')}"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"keras": version("keras"), "keras-backend": keras.config.backend()}

    def refusals(self) -> Mapping[Capability, str]:
        return _REFUSED | (_CPU_REFUSED if self.device == "cpu" else {})

    def supported_capabilities(self) -> Collection[Capability]:
        meshes = {Capability.RANKS_TENSOR, Capability.RANKS_SEQUENCE} if self.device == "cpu" else set()
        return SUPPORTED | {Capability.SAVED_BYTES} | meshes

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        workers = partial(device_workers, 4, KERAS)
        return {**super().rules(), Meshes: partial(RemoteMeshes, workers, "frameworks.jax.keras.mesh")}

    def attempts(self) -> Mapping[Capability, Attempt]:
        of_arrays = keras_attempts(BACKEND, self._run)
        of_arrays |= {Capability.MISSING_GRADIENTS: _misses, Capability.PEAK_BYTES: has_peak}
        result: dict[Capability, Attempt] = {c: partial(self.on_device, attempt) for c, attempt in of_arrays.items()}
        return result if self.device != "cpu" else with_ranks(result, _rank_group, None)

    def conventions(self) -> Conventions:
        return replace(super().conventions(), batch_statistics="whole", compiled=True)

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.require_recipe(recipe)
        return _rank_group(model, recipe, weights)

    def trainer(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> StatelessRun | RankGroupTrainer:
        self.require_recipe(recipe)
        if recipe.ranks is not None:
            return self.bind(RankGroupTrainer(_rank_group(model, recipe, weights)))
        return self.bind(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> StatelessRun:
        return StatelessRun(model, recipe, weights, self._place)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with jax.default_device(self._place), wide_formats(any(array.dtype == np.float64 for array in arrays)):
            return super().run_op(op, *arrays)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        with jax.default_device(self._place):
            return differentiate_case(case, x, w, self.remat(variant), self._place)

    def global_state(self) -> dict[str, str]:
        return super().global_state() | read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        own = read_settings()
        super().restore_global_state({name: value for name, value in state.items() if name not in own})
        write_settings(state)
