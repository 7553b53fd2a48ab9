"""Keras on JAX, on one device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from importlib.metadata import version

import jax
import keras
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseRankGroup, RankGroupTrainer, with_ranks
from frameworks.contract import Attempt, Capability, Conventions, OpResult, RecomputeCase, RecomputeResult
from frameworks.jax.core.arrays import wide_formats
from frameworks.jax.core.settings import KERAS, OnDevice
from frameworks.jax.keras.probes import ATTEMPTS, CONVENTIONS, refusals, remat_case
from frameworks.jax.keras.trainer import StatelessRun
from frameworks.jax.launch import rank_group
from frameworks.keras_common.operations import OF_SCOPES, ScopeOfPolicies
from frameworks.keras_common.optimizers import option_attempts
from frameworks.keras_common.probes import SUPPORTED
from frameworks.keras_common.settings import read_settings, write_settings

_rank_group = partial(rank_group, mode=KERAS)


class KerasFramework(ScopeOfPolicies, OnDevice):
    """Training with Keras alone: mode "keras"."""

    own_modes = (KERAS,)

    def version(self) -> str:
        return f"{jax.__version__}+keras.{version('keras')}"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"keras": version("keras"), "keras-backend": keras.config.backend()}

    def refusals(self) -> Mapping[Capability, str]:
        return refusals(self.device)

    def supported_capabilities(self) -> Collection[Capability]:
        return SUPPORTED | {Capability.SAVED_BYTES}

    def attempts(self) -> Mapping[Capability, Attempt]:
        tried = ATTEMPTS | OF_SCOPES | option_attempts(self._run)
        here: dict[Capability, Attempt] = {c: partial(self._here, attempt) for c, attempt in tried.items()}
        return here if self.device != "cpu" else with_ranks(here, _rank_group, None)

    def _here(self, attempt: Attempt) -> bool:
        with jax.default_device(self._place):
            return attempt()

    def conventions(self) -> Conventions:
        return CONVENTIONS

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
            return remat_case(case, x, w, self.variant(variant), self._place)

    def global_state(self) -> dict[str, str]:
        return super().global_state() | read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        own = read_settings()
        super().restore_global_state({name: value for name, value in state.items() if name not in own})
        write_settings(state)
