"""TensorFlow with Keras 3 as a framework of the suite: its declarations, and its ranks, logical devices of one CPU."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import LEVELS_OF, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base import (
    KERNEL,
    OF_ONE_PLACE,
    BaseRankGroup,
    BaseShipped,
    RankGroupTrainer,
    casts_of,
    delayed_attempts,
    float8_attempts,
    optimizer_attempts,
    quantizers_of,
    ranks_of,
    shipped_attempts,
    techniques_of,
    with_ranks,
)
from frameworks.base.host import elapsed_between
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    DelayedProducts,
    Float8Rule,
    FunctionResult,
    LowRankAdapters,
    NumberFormats,
    OpResult,
    Part,
    PostTraining,
    Quantizers,
    RecomputeCase,
    RecomputeResult,
    Unsupported,
    ValueSaver,
)
from frameworks.keras_common.framework import NO_LISTS, REFUSED, SUPPORTED, ScopeOfPolicies
from frameworks.keras_common.optimizers import KerasOptimizers, rates
from frameworks.keras_common.settings import dtype_policy, policy_of
from frameworks.ranks import RemoteRankGroup, worker_group_of
from frameworks.tf import quantization, shipped, tflite
from frameworks.tf.core import settings, ways
from frameworks.tf.core.steps import VARIANTS, function_used, graph_operations, recompute, run_op
from frameworks.tf.probes import attempts
from frameworks.tf.quantization import (
    RULE,
    KerasDelayedProduct,
    KerasPostTraining,
    TensorFlowFormats,
    TensorFlowQuantizers,
)
from frameworks.tf.shipped import TensorFlowFunctions
from frameworks.tf.training import SAVER, TensorFlowTrainer

_MEMBER = "frameworks.tf.distributed:MirroredWorker"
_OF_PARTS = ("graph", "xla")
"""Modes in which operations and layers are judged one by one."""
_ADAPTED = ("graph", "eager")
"""Modes in which low-rank adapters are judged."""
_RANKED = ("graph", "eager", "mirrored", tflite.MODE)
"""Modes with ranks, which are logical CPUs."""

_NO_CPU_REWRITE = "auto_mixed_precision needs a GPU or a CPU with AMX-FP16"
_NO_GPU_REWRITE = "auto_mixed_precision_onednn_bfloat16 is a rewrite for CPUs"
_WIDE_WEIGHTS = "a graph rewrite leaves the weights in float32"
_FLOAT8_WANTS_A_GRAPH = (
    "Keras' float8 layers have no gradient in eager execution: model.fit with run_eagerly=True raises ValueError"
)
_NO_TF32 = "TensorFloat-32 is a format of NVIDIA's GPUs, from compute capability 8.0 on"
_UNCOUNTED: dict[str, str] = {
    "eager": "TensorFlow does not report a tape's bytes, and its allocators round up or ignore small tensors",
    "xla": "XLA compiles forward and backward into one program; only a graph that is not yet optimized can be counted",
    "rewrite": "the rewrite happens after the graph whose tensors can be counted",
}
_MIRRORED = "tf.distribute.MirroredStrategy keeps a copy of every variable on each replica; it has no shards"
_OF_RANKS: dict[Capability, str] = {
    Capability.RANKS_OPTIMIZER: _MIRRORED,
    Capability.RANKS_GRADIENTS: _MIRRORED,
    Capability.RANKS_FULL: _MIRRORED,
    Capability.RANKS_HYBRID: _MIRRORED,
    Capability.RANKS_LOW_REDUCTION: "tf.distribute adds gradients up in their own format, and no option names another",
    Capability.RANKS_LOST: "MirroredStrategy's replicas are devices of one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "nothing in tf.distribute counts the reductions that a run has made",
}
_NO_CPU_STATISTICS = "TensorFlow documents memory statistics of GPUs and TPUs; a CPU's leave out tensors below 256 KiB"

_MERGES_IN_A_GRAPH = (
    "Keras ends a window inside a conditional, where tf.distribute refuses the optimizer's merge_call in a tf.function"
)


def rank_group(mode: str, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
    """The ranks of a new run, each a replica on a logical CPU; in mode "eager" their steps run without `tf.function`.

    Raises:
        Unsupported: replicas in a `tf.function` do not support the recipe.
        ValueError: the recipe names no ranks.
    """
    if recipe.accumulation > 1 and mode != "eager":
        raise Unsupported(Capability.ACCUMULATION, _MERGES_IN_A_GRAPH, partial(_trains, mode, model, recipe))
    return start_rank_group(mode, model, recipe, weights)


def start_rank_group(
    mode: str, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
) -> BaseRankGroup:
    """Does what `rank_group` does, without its refusal of known failures."""
    count = ranks_of(recipe).count
    worker_group = worker_group_of(_MEMBER, count, "cpu", "eager" if mode == "eager" else "graph", {}, 1)
    return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, weights)]))


def _trains(mode: str, model: Model, recipe: Recipe) -> bool:
    """Returns whether a refused update succeeds if tried without the adapter's guards."""
    run = start_rank_group(mode, model, recipe)
    gradients = {name: np.ones(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    return not any(update.skipped for update in run.apply_gradients([[gradients] * recipe.accumulation] * run.count))


class TensorFlowFramework(ScopeOfPolicies):
    """Modes: a `tf.function`, eager execution, a `tf.function` compiled by XLA, grappler's automatic mixed precision.

    In "rewrite" the layers are float32 and level O1 is TensorFlow's graph rewrite; in the other modes a level is a
    Keras dtype policy. "mirrored" is "graph" with two ranks in every recipe, and "tflite" is "graph" with TensorFlow
    Lite as the quantizer of trained models.
    """

    name = "tf"
    ranks_of_modes = MappingProxyType({"mirrored": Ranks(2)})
    modes = ("graph", "eager", "xla", "rewrite", *ranks_of_modes, tflite.MODE)

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        settings.pin_threads()
        settings.grow_memory()
        super().__init__(device, mode)
        if self.device == "cuda":
            tf.config.experimental.enable_tensor_float_32_execution(False)

    def devices(self) -> tuple[str, ...]:
        return settings.available()

    def version(self) -> str:
        return f"{tf.__version__}+keras.{keras.__version__}"

    def environment(self) -> dict[str, str]:
        result = settings.describe(self.device)
        return result | tflite.environment() if self.mode == tflite.MODE else result

    def refusals(self) -> Mapping[Capability, str]:
        reasons = dict(REFUSED)
        if self.mode == "rewrite":
            reasons |= dict.fromkeys((Capability.O3_FLOAT16, Capability.O3_BFLOAT16), _WIDE_WEIGHTS)
            if self.device == "cpu":
                reasons[Capability.O1_FLOAT16] = _NO_CPU_REWRITE
            else:
                reasons[Capability.O1_BFLOAT16] = _NO_GPU_REWRITE
        else:
            reasons[Capability.AUTOCAST_LISTS] = NO_LISTS
        if self.mode in _UNCOUNTED:
            reasons[Capability.SAVED_BYTES] = _UNCOUNTED[self.mode]
        if self.device == "cpu":
            reasons[Capability.PEAK_BYTES] = _NO_CPU_STATISTICS
        if self._has_ranks:
            reasons |= _OF_RANKS
        if self.mode == tflite.MODE:
            reasons |= dict.fromkeys(tflite.find_missing(), tflite.NOT_THERE)
        if self.mode == "eager":
            reasons |= dict.fromkeys((Capability.DELAYED_SCALING, Capability.FLOAT8_TRAINING), _FLOAT8_WANTS_A_GRAPH)
        if self.mode in _ADAPTED:
            reasons[Capability.ADAPTER_FLOAT_INPUTS] = quantization.ROUNDS_INPUTS
        if not settings.has_tf32(self.device):
            reasons[Capability.TF32] = _NO_TF32
        return reasons

    def supported_capabilities(self) -> Collection[Capability]:
        result = SUPPORTED | casts_of(self.rule(NumberFormats)) | quantizers_of(self.rule(Quantizers))
        result |= techniques_of(self.rule(PostTraining)) | {Capability.INTEGER_PRODUCTS}
        if hasattr(keras.quantizers, "pack_int4"):
            result |= {Capability.INT4_PACKING}
        if self.mode == "graph":
            result |= {Capability.PLATEAU, Capability.FUNCTION_USES}
            result |= {Capability.SAVED_VALUES, Capability.BACKGROUND_SAVES}
        if self.mode in _ADAPTED:
            result |= quantization.CAPABILITIES
        if self.ranks() is None:
            return result | {Capability.FROZEN, Capability.FREEZE, Capability.LIVE_STATE}
        return result - OF_ONE_PLACE

    def attempts(self) -> Mapping[Capability, Attempt]:
        result = attempts(self._loop_mode, self._place, self._run) | shipped_attempts(self.parts())
        result |= delayed_attempts(partial(self._delayed_product, KERNEL, history=4))
        result[Capability.ADAPTER_FLOAT_INPUTS] = quantization.keeps_inputs
        if self.mode == tflite.MODE:
            result |= dict.fromkeys(tflite.find_missing(), tflite.has_lite)
        if self.ranks() is None:
            result |= float8_attempts(self._run) | optimizer_attempts(self._run, Capability.GROUP_RATES)
        return with_ranks(result, partial(start_rank_group, self.mode), self.ranks()) if self._has_ranks else result

    def conventions(self) -> Conventions:
        return replace(super().conventions(), compiled=self.mode != "eager")

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        if self.mode not in _OF_PARTS:
            return {}
        by_xla = self.mode == "xla"
        return {
            "operations": partial(shipped.Operations, compiled_by_xla=by_xla),
            "layers": partial(shipped.Layers, compiled_by_xla=by_xla),
            "optimizers": partial(KerasOptimizers, partial(tf.function, jit_compile=by_xla)),
            "functions": TensorFlowFunctions,
        }

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.require_recipe(recipe)
        return rank_group(self.mode, model, recipe, weights)

    def trainer(
        self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
    ) -> TensorFlowTrainer | RankGroupTrainer:
        self.require_recipe(recipe)
        ways.require(recipe)
        if recipe.ranks is not None:
            recipe = recipe.replace(ways=recipe.ways_of(*LEVELS_OF).ways)
            return self.bind(RankGroupTrainer(rank_group(self.mode, model, recipe, weights)))
        return self.bind(self._run(model, recipe, weights))

    def _run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TensorFlowTrainer:
        return TensorFlowTrainer(
            model,
            recipe,
            weights,
            mode=self._loop_mode,
            policy=self.policy(recipe.precision),
            rewrite=self._rewrite(recipe.precision),
            device=self._place,
        )

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        self.require_scope(precision, lists=bool(wide or low))
        chosen = precision if enabled else Precision()
        named = settings.rewrite_lists(graph_operations(low), graph_operations(wide)) if wide or low else nullcontext()
        return self._scope(self.policy(chosen), self._rewrite(chosen), named)

    @contextmanager
    def _scope(self, policy: str, rewrite: str | None, named: AbstractContextManager[None]) -> Iterator[None]:
        with dtype_policy(policy), settings.graph_rewrite(rewrite), named:
            yield

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        self.require(Capability.PLATEAU)
        return rates(plateau, metrics, saved)

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        return function_used(use, inputs, variant, self._loop_mode)

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return settings.tensor_float_32(allowed)

    def measure_time(self, work: Callable[[], object]) -> int:
        """Nanoseconds on the host's clock between two waits for all devices: TensorFlow has no public device events."""
        if self.device == "cpu":
            return super().measure_time(work)
        return elapsed_between(work, tf.test.experimental.sync_devices)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with tf.device(self._place):
            return run_op(op, arrays, self._loop_mode)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {
            NumberFormats: partial(TensorFlowFormats, self._loop_mode, self._place),
            Quantizers: partial(TensorFlowQuantizers, self._loop_mode, self._place),
            PostTraining: self._post_training,
            Float8Rule: lambda: RULE,
            DelayedProducts: lambda: self._delayed_product,
            LowRankAdapters: lambda: partial(quantization.KerasAdaptedNetwork, mode=self._loop_mode),
            ValueSaver: lambda: SAVER,
        }

    def _delayed_product(self, kernel: Array, *, history: int, accumulation: int = 1) -> KerasDelayedProduct:
        return KerasDelayedProduct(
            kernel, history=history, accumulation=accumulation, mode=self._loop_mode, device=self._place
        )

    def _post_training(self) -> PostTraining:
        if self.mode == tflite.MODE:
            return tflite.TflitePostTraining(self.device)
        return KerasPostTraining(self._loop_mode, self._place)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        chosen = self.variant(variant)
        with tf.device(self._place):
            return recompute(case, x, w, chosen, self._loop_mode)

    def global_state(self) -> dict[str, str]:
        return settings.read_global_state()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        settings.write_global_state(state)

    @property
    def _has_ranks(self) -> bool:
        """True if there are ranks: logical CPUs, in the modes without XLA and rewrites."""
        return self.device == "cpu" and self.mode in _RANKED

    @property
    def _loop_mode(self) -> str:
        """The mode of the functions of a run, without ranks and TensorFlow Lite."""
        return "graph" if self.mode in (*self.ranks_of_modes, tflite.MODE) else self.mode

    @property
    def _place(self) -> str:
        return settings.place(self.device)

    def policy(self, precision: Precision) -> str:
        """Name of a precision's dtype policy."""
        return "float32" if self.mode == "rewrite" else policy_of(precision)

    def _rewrite(self, precision: Precision) -> str | None:
        if self.mode != "rewrite":
            return None
        return settings.REWRITES[precision.format] if precision.level == "O1" else settings.NO_REWRITE
