"""JAX as a framework of the suite."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import Offload, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base import (
    BaseRankGroup,
    BaseShipped,
    RankGroupTrainer,
    casts_of,
    offload_attempts,
    shipped_attempts,
    techniques_of,
    with_ranks,
)
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    DelayedProducts,
    Float8Rule,
    FunctionFormat,
    FunctionResult,
    NumberFormats,
    OpResult,
    Part,
    PostTraining,
    RecomputeCase,
    RecomputeResult,
    Unsupported,
)
from frameworks.jax.core.arrays import to_array, wide_formats
from frameworks.jax.core.float8 import ONLY_COMPILED, RULE, FlaxDelayedProduct, joins_windows
from frameworks.jax.core.layers import VARIANTS
from frameworks.jax.core.operations import OPERATIONS, WAYS
from frameworks.jax.core.schedules import rates
from frameworks.jax.core.settings import JIT, NOJIT, OFFLOAD, SHARDED, WHOLE, OnDevice
from frameworks.jax.declarations import capabilities_of, conventions, refusals
from frameworks.jax.launch import rank_group
from frameworks.jax.probes import ATTEMPTS
from frameworks.jax.quantization import JaxFormats, QwixPostTraining, find_refusals, refused_attempts
from frameworks.jax.shipped import operations_and_layers
from frameworks.jax.shipped import optimizers as shipped_optimizers
from frameworks.jax.shipped.control_flow import JAXFunctions
from frameworks.jax.training import optimizers
from frameworks.jax.training.offload import OffloadedTrainer, activations_leave, disk_is_a_memory
from frameworks.jax.training.recompute import function_used, recompute
from frameworks.jax.training.trainer import JaxTrainer

_OFFLOAD = Offload(("parameters", "optimizer"))

_NOT_ON_A_CPU: dict[Capability, Attempt] = {Capability.OFFLOAD_ACTIVATIONS: activations_leave}
"""On a GPU activations can leave by a checkpoint policy, which this adapter does not offer."""


class JaxFramework(OnDevice):
    """Training with Flax, Optax and JMP.

    Mode "nojit" runs every operation by itself, under `jax.disable_jit`; "sharded" trains every recipe with two ranks,
    "offload" keeps parameters and the optimizer's state in the host's memory.
    """

    ranks_of_modes = MappingProxyType({SHARDED: Ranks(2)})
    offload_of_modes = MappingProxyType({OFFLOAD: _OFFLOAD})
    own_modes = (JIT, NOJIT, SHARDED, OFFLOAD)

    def refusals(self) -> Mapping[Capability, str]:
        return refusals(self._place, self.mode) | find_refusals()

    def supported_capabilities(self) -> Collection[Capability]:
        interfaces = casts_of(self.rule(NumberFormats)) | techniques_of(self.rule(PostTraining))
        return capabilities_of(self.mode) | interfaces | {Capability.DELAYED_SCALING}

    def attempts(self) -> Mapping[Capability, Attempt]:
        refused = {Capability.OFFLOAD_DISK: disk_is_a_memory} | (_NOT_ON_A_CPU if self.device == "cpu" else {})
        here: dict[Capability, Attempt] = {
            c: partial(self._here, attempt) for c, attempt in (ATTEMPTS | refused | optimizers.attempts()).items()
        }
        here |= refused_attempts() | shipped_attempts(self.parts())
        if self.mode == "nojit":
            return here
        here |= offload_attempts(self._run, (_OFFLOAD,))
        return here if self.device != "cpu" else with_ranks(here, rank_group, self.ranks())

    def _here(self, attempt: Attempt) -> bool:
        with jax.default_device(self._place), jax.disable_jit(self.mode == "nojit"):
            return attempt()

    def conventions(self) -> Conventions:
        return conventions(self.mode)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {
            NumberFormats: partial(JaxFormats, self._place, jit=self.mode != "nojit"),
            PostTraining: partial(QwixPostTraining, self._place, jit=self.mode != "nojit"),
            Float8Rule: lambda: RULE,
            DelayedProducts: lambda: self._delayed_product,
        }

    def _delayed_product(self, kernel: Array, *, history: int, accumulation: int = 1) -> FlaxDelayedProduct:
        compiled = self.mode != "nojit"
        if accumulation > 1 and not compiled:
            make = partial(FlaxDelayedProduct, kernel, history, self._place, jit=False)
            raise Unsupported(Capability.DELAYED_SCALING, ONLY_COMPILED, partial(joins_windows, make))
        return FlaxDelayedProduct(kernel, history, self._place, jit=compiled)

    def recompute_variants(self) -> tuple[str, ...]:
        return tuple(VARIANTS)

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        if self.mode != JIT:
            return {}
        return {
            "operations": operations_and_layers.Operations,
            "layers": operations_and_layers.Layers,
            "optimizers": shipped_optimizers.OptaxOptimizers,
            "functions": JAXFunctions,
        }

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return WAYS

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.require_recipe(recipe)
        return rank_group(model, recipe, weights)

    def trainer(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> JaxTrainer | RankGroupTrainer:
        self.require_recipe(recipe)
        optimizers.require(recipe)
        if recipe.ranks is not None:
            recipe = recipe.replace(ways=())
            return self.bind(RankGroupTrainer(rank_group(model, recipe, weights)))
        return self.bind(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> JaxTrainer:
        trainer = JaxTrainer if recipe.offload is None else OffloadedTrainer
        return trainer(model, recipe, weights, self._place, self.mode)

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        self.require(Capability.PLATEAU)
        return rates(plateau, metrics, saved)

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        return function_used(use, inputs, variant)

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return jax.default_matmul_precision(None if allowed is None else "tensorfloat32" if allowed else WHOLE)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        wide = any(array.dtype == np.float64 for array in arrays)
        with wide_formats(wide), jax.default_device(self._place), jax.disable_jit(self.mode == "nojit"):
            value = to_array(OPERATIONS[op](*(jax.device_put(array, self._place) for array in arrays)))
        return OpResult(value, value.dtype.name)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        with jax.default_device(self._place), jax.disable_jit(self.mode == "nojit"):
            return recompute(case, x, w, self.variant(variant), self._place)
