"""JAX as a framework of the suite: declarations, conventions, and the calls of each method."""

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
    OF_ONE_PLACE,
    OPTIONS,
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
    LowRankAdapters,
    Meshes,
    NumberFormats,
    OpResult,
    Part,
    PostTraining,
    RecomputeCase,
    RecomputeResult,
    ScalerRule,
    Unsupported,
    ValueSaver,
)
from frameworks.jax import low_rank, shipped
from frameworks.jax.core.layers import OPERATIONS, VARIANTS, WAYS
from frameworks.jax.core.settings import (
    JIT,
    NO_PEAK,
    NOJIT,
    OFFLOAD,
    PINNED_HOST,
    REFUSED_RANKS,
    SHARDED,
    WHOLE,
    OnDevice,
    device_workers,
    is_installed,
    rank_group,
    wide_formats,
)
from frameworks.jax.core.ways import rates
from frameworks.jax.functions import JAXFunctions
from frameworks.jax.probes import ATTEMPTS
from frameworks.jax.quantization import (
    INSTALLED,
    MISSING,
    NOT_INSTALLED,
    ONLY_COMPILED,
    RULE,
    FlaxDelayedProduct,
    JaxFormats,
    QwixPostTraining,
    joins_windows,
)
from frameworks.jax.training import optimizers
from frameworks.jax.training.optimizers import INITIAL, MINIMUM, OPTIMIZERS, REFUSED_OPTIONS
from frameworks.jax.training.steps import function_used, recompute
from frameworks.jax.training.trainer import SAVER, JaxTrainer, OffloadedTrainer, activations_leave, disk_is_a_memory
from frameworks.ranks import RemoteMeshes

_SUPPORTED = OPTIONS | {
    Capability.FLOAT64_HEADS,
    Capability.OPERATIONS,
    Capability.STATIC_SCALING,
    Capability.SCALING_FACTORS,
    Capability.SCALING_DISABLED,
    Capability.EXPLICIT_UNSCALE,
    Capability.TWO_OPTIMIZERS,
    Capability.TWO_LOSSES,
    Capability.ACCUMULATION,
    Capability.PARTIAL_WINDOW,
    Capability.RECOMPUTE,
    Capability.RECOMPUTE_NESTED,
    Capability.RECOMPUTE_CASES,
    Capability.SEGMENT_CALLS,
    Capability.GROUPS,
    Capability.CLIP,
    Capability.SCHEDULE,
    Capability.AVERAGE,
    Capability.FOREACH,
    Capability.INTEGER_PRODUCTS,
    Capability.FLOAT8_PRODUCTS,
    Capability.LAYER_REUSE,
    Capability.TIED_WEIGHTS,
    Capability.USER_FUNCTION,
    Capability.FEED,
    Capability.CHECKPOINT,
    *OPTIMIZERS,
}
_IN_ONE_PLACE = OF_ONE_PLACE | {Capability.LIVE_STATE, Capability.FLOAT8_TRAINING}


_REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.AUTOCAST_SCOPE: "JAX, Flax and JMP have no scope that casts what operations take: a Linen module is "
    "made with its dtype, and jax.default_matmul_precision sets how products round inside",
    Capability.AUTOCAST_LISTS: "a Linen module is made with its dtype; no list names operations",
    Capability.SECOND_UNSCALE: "JMP's unscale is a function of arrays, which do not tell whether they were unscaled "
    "before",
    Capability.OFFLOAD_DISK: "JAX's memory kinds are those of devices and of the host; none is a file",
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a parameter that the loss does not reach, never nothing, "
    "and optax.apply_updates takes no None",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: NO_PEAK,
    Capability.OFFLOAD_ACTIVATIONS: "on a CPU a checkpoint policy that offloads, such as "
    "save_and_offload_only_these_names, moves nothing",
    Capability.TF32: "on a CPU jax.default_matmul_precision changes nothing by 'tensorfloat32', and 'TF32_TF32_F32' "
    "is refused",
}
_NO_HOST_MEMORY = dict.fromkeys(
    (Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER, Capability.OFFLOAD_HOST),
    "a CPU device of this release has no memory of the kind pinned_host",
)
_RANKS_REFUSED: dict[Capability, str] = {
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and no setting changes it: only jax.lax.psum in jax.shard_map adds up what a program has cast",
    **REFUSED_RANKS,
}
_NO_TF32 = "this GPU has no products in TensorFloat-32, which compute capability 8.0 brought"


def _has_tf32(device: jax.Device) -> bool:
    """Returns whether the GPU has TensorFloat-32, by NVIDIA's compute capability, such as "9.0"."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdigit() and int(major) >= 8


_OFFLOAD = Offload(("parameters", "optimizer"))


class JaxFramework(OnDevice):
    """Training with Flax, Optax and JMP.

    Mode "nojit" runs every operation by itself, under `jax.disable_jit`; "sharded" trains every recipe with two ranks,
    "offload" keeps parameters and the optimizer's state in host memory.
    """

    ranks_of_modes = MappingProxyType({SHARDED: Ranks(2)})
    offload_of_modes = MappingProxyType({OFFLOAD: _OFFLOAD})
    own_modes = (JIT, NOJIT, SHARDED, OFFLOAD)

    def refusals(self) -> Mapping[Capability, str]:
        reasons = _REFUSED | dict.fromkeys((*MISSING, *self._missing_adapters), NOT_INSTALLED)
        if self.device != "cpu":
            return reasons | ({} if _has_tf32(self._place) else {Capability.TF32: _NO_TF32})
        if PINNED_HOST not in {memory.kind for memory in self._place.addressable_memories()}:
            reasons |= _NO_HOST_MEMORY
        return reasons | _CPU_REFUSED | ({} if self.mode == NOJIT else _RANKS_REFUSED)

    @property
    def _missing_adapters(self) -> Collection[Capability]:
        return low_rank.CAPABILITIES | low_rank.ABSENT if self.mode == JIT and not INSTALLED else ()

    def supported_capabilities(self) -> Collection[Capability]:
        interfaces = casts_of(self.rule(NumberFormats)) | techniques_of(self.rule(PostTraining))
        result = _SUPPORTED | interfaces | {Capability.DELAYED_SCALING}
        if self.mode == JIT:
            result |= {Capability.PLATEAU, Capability.FUNCTION_USES, *low_rank.CAPABILITIES}
            result |= {Capability.RANKS_TENSOR, Capability.RANKS_SEQUENCE} if self.device == "cpu" else set()
            result |= {Capability.SAVED_VALUES, Capability.BACKGROUND_SAVES}
        return result if self.mode == SHARDED else result | _IN_ONE_PLACE

    def attempts(self) -> Mapping[Capability, Attempt]:
        of_arrays = ATTEMPTS | {Capability.OFFLOAD_DISK: disk_is_a_memory} | optimizers.attempts()
        if self.device == "cpu":  # on a GPU a checkpoint policy offloads; this adapter does not offer it
            of_arrays |= {Capability.OFFLOAD_ACTIVATIONS: activations_leave}
        result: dict[Capability, Attempt] = {c: partial(self.on_device, attempt) for c, attempt in of_arrays.items()}
        result |= dict.fromkeys((*MISSING, *self._missing_adapters), partial(is_installed, "qwix"))
        result |= shipped_attempts(self.parts())
        if self.mode == NOJIT:
            return result
        result |= offload_attempts(self._run, (_OFFLOAD,))
        return result if self.device != "cpu" else with_ranks(result, rank_group, self.ranks())

    def conventions(self) -> Conventions:
        return Conventions(
            adam_epsilon="outside",
            adam_correction="float32",
            momentum_rate="outside",
            amsgrad="corrected",
            adagrad_epsilon="inside",
            rmsprop_epsilon="inside",
            rmsprop_rate="inside",
            adafactor_rate="given",
            adafactor_decay="whole",
            muon_default_epsilon=1e-8,
            muon_nesterov="corrected",
            normalisation="low",
            variance="difference",
            running_variance="biased",
            clip_epsilon=0.0,
            nonfinite_micro_batch="drop-micro-batch",
            remainder="carry",
            static_skips=False,
            partial_overflow="skip-all",
            accumulates="unscaled",
            compiled=self.mode != NOJIT,
            batch_statistics="whole",
            keeps_products=("dots_saveable",),
            adapter_format="base",
            scaler=ScalerRule(
                initial=INITIAL,
                growth=2.0,
                backoff=0.5,
                interval=2000,
                minimum=MINIMUM,
                maximum=float(np.finfo(np.float32).max),
                counts="updates",
                nonfinite="unscaled",
                latched=False,
            ),
        )

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {
            NumberFormats: partial(JaxFormats, self._place, jit=self.mode != NOJIT),
            PostTraining: partial(QwixPostTraining, self._place, jit=self.mode != NOJIT),
            Float8Rule: lambda: RULE,
            DelayedProducts: lambda: self._delayed_product,
            LowRankAdapters: lambda: partial(low_rank.QwixNetwork, device=self._place),
            Meshes: partial(RemoteMeshes, partial(device_workers, 4), "frameworks.jax.distributed"),
            ValueSaver: lambda: SAVER,
        }

    def _delayed_product(self, kernel: Array, *, history: int, accumulation: int = 1) -> FlaxDelayedProduct:
        compiled = self.mode != NOJIT
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
            "operations": shipped.Operations,
            "layers": shipped.Layers,
            "optimizers": shipped.OptaxOptimizers,
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
        with wide_formats(wide), jax.default_device(self._place), jax.disable_jit(self.mode == NOJIT):
            value = np.array(OPERATIONS[op](*(jax.device_put(array, self._place) for array in arrays)))
        return OpResult(value, value.dtype.name)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        with jax.default_device(self._place), jax.disable_jit(self.mode == NOJIT):
            return recompute(case, x, w, self.variant(variant), self._place)
