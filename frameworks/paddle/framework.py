"""The base of Paddle's two graphs, `OneGraph`, the dynamic graph, `PaddleFramework`, and their capabilities.

Attempts make Paddle's own calls in the dynamic graph, without this adapter's guards.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import paddle
from paddle.base import core

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import LEVELS_OF, DynamicScaling, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base import (
    OF_ONE_PLACE,
    BaseFramework,
    BaseRankGroup,
    BaseShipped,
    BaseTrainer,
    RankGroupTrainer,
    casts_of,
    offload_attempts,
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
    FunctionFormat,
    FunctionResult,
    NumberFormats,
    OpResult,
    Part,
    PostTraining,
    Quantizers,
    RecomputeCase,
    RecomputeResult,
    Trainer,
    Unsupported,
    ValueSaver,
)
from frameworks.operations import CATALOGUE
from frameworks.paddle import shipped
from frameworks.paddle.core import layers, settings, ways
from frameworks.paddle.core.layers import HOOKS, OPERATIONS, REENTRANT, listed_names, missing_kernel
from frameworks.paddle.core.settings import (
    DATA_PARALLEL,
    DYGRAPH,
    FORCED,
    MODES,
    ONE_PAIR,
    format_name,
    hooks_nest,
    offloads_shards,
    to_numpy,
    to_tensor,
)
from frameworks.paddle.functions import PaddleFunctions
from frameworks.paddle.quantization import (
    NO_PRODUCTS,
    PaddleFormats,
    PaddlePostTraining,
    PaddleQuantizers,
    gpu_kernel_attempts,
    integer_products,
)
from frameworks.paddle.training import optimizers
from frameworks.paddle.training.optimizers import OPTIMIZERS, forced_scaler, quiet
from frameworks.paddle.training.trainer import NO_BACKGROUND, SAVER, DygraphTrainer, saves_in_background
from frameworks.ranks import Limits, RemoteRankGroup, worker_group_of

_SCALER_AFTER_BFLOAT16 = "GradScaler warns and turns itself off where the last precision scope was a bfloat16 one"

_MEETS_IN = "3.3."
"""Versions whose clients are known to understand the ranks' store (`frameworks.paddle.rendezvous`)."""

_LIMITS = Limits(group_s=30.0)
"""Timeout of gloo's operations, which Paddle does not let users change."""


def has_ranks(device: str) -> bool:
    """Returns whether this version of Paddle has ranks of the suite's here."""
    return device == "cpu" and paddle.__version__.startswith(_MEETS_IN)


class OneGraph(BaseFramework):
    """Paddle with one of its two graphs.

    Attributes:
        modes: all modes of the adapter.
        own_modes: modes that run this graph, the default one first.
        member: class of a rank's process, as package.module:Class.
        plateau_run: class of a run whose rate follows a metric.
    """

    name = "paddle"
    modes: tuple[str, ...] = MODES
    own_modes: tuple[str, ...]
    member: str
    plateau_run: type[ways.PlateauRun] = ways.PlateauRun

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode or self.own_modes[0])
        if self.mode not in self.own_modes:
            raise ValueError(f"mode: got {self.mode!r} of the other graph, want one of {', '.join(self.own_modes)}")
        paddle.device.set_device(settings.own_name(self.device))
        core.set_num_threads(1)
        if self.device == "cuda":
            settings.let_tf32(False)

    @abstractmethod
    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> BaseTrainer:
        """A new run of a supported recipe without ranks."""

    def run_of(self, model: Model, recipe: Recipe) -> Trainer:
        """A new run from the model's own weights."""
        return cast(Trainer, self.run(model, recipe, model.weights(recipe.seed)))

    @abstractmethod
    def compute(self, op: str, arrays: Sequence[Array]) -> OpResult:
        """The result of the operation on these arrays inside the open precision scope."""

    @abstractmethod
    def scales_after_bfloat16(self) -> bool:
        """Returns whether a `GradScaler` scales after a bfloat16 scope."""

    def turns_scaler_off(self, recipe: Recipe) -> bool:
        """Returns whether the recipe's precision scope makes Paddle turn the dynamic scaler off."""
        dynamic = isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled
        return dynamic and recipe.precision.format == "bfloat16"

    def leave_out_ranks(self, reasons: Mapping[Capability, str]) -> dict[Capability, str]:
        """The reasons, without those of capabilities of ranks if there are no ranks here."""
        return {c: reason for c, reason in reasons.items() if has_ranks(self.device) or not c.startswith("ranks.")}

    def devices(self) -> tuple[str, ...]:
        return settings.available()

    def conventions(self) -> Conventions:
        return Conventions(
            adam_share="float32",
            rmsprop_epsilon="inside",
            rmsprop_rate="inside",
            plateau_waits=True,
            plateau_signed=True,
        )

    def version(self) -> str:
        return str(paddle.version.full_version)

    def environment(self) -> dict[str, str]:
        return settings.read_environment(self.device)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseTrainer:
        self.admit(model, recipe)
        if recipe.ranks is not None:
            recipe = recipe.replace(ways=recipe.ways_of(*LEVELS_OF).ways)
            return self.bind(RankGroupTrainer(self.ranks_of_a_run(model, recipe, weights)))
        start = model.weights(recipe.seed) if weights is None else weights
        return self.bind(self.run(model, recipe, start))

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        self.admit(model, recipe)
        return self.ranks_of_a_run(model, recipe, weights)

    def ranks_of_a_run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
        """The ranks of a new run of a supported recipe, each a process on the CPU."""
        mode = DYGRAPH if self.mode == DATA_PARALLEL else self.mode
        count = ranks_of(recipe).count
        start = model.weights(recipe.seed) if weights is None else weights
        worker_group = worker_group_of(self.member, count, "cpu", mode, {}, limits=_LIMITS)
        return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, start)] * count))

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        self.require(Capability.PLATEAU)
        return ways.rates(self.plateau_run, plateau, metrics, saved)

    def admit(self, model: Model, recipe: Recipe) -> None:
        """Refuses an unsupported run.

        Raises:
            Unsupported: for the first unsupported part.
        """
        self.require_recipe(recipe)
        optimizers.require(recipe)
        ways.require(recipe)
        if any(head.format == "float64" for head in model.heads.heads):
            self.require(Capability.FLOAT64_HEADS)
        if self.turns_scaler_off(recipe):
            raise Unsupported(Capability.DYNAMIC_SCALING, _SCALER_AFTER_BFLOAT16, self.scales_after_bfloat16)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        level = precision.level if precision.level in ("O0", "O1") else "O2"
        lists: dict[str, Any] = {}
        if wide:
            lists["custom_black_list"] = {name for op in wide for name in listed_names(op)}
        if low:
            lists["custom_white_list"] = {name for op in low for name in listed_names(op)}
        dtype = "float16" if level == "O0" else precision.format
        return paddle.amp.auto_cast(enable=enabled and level != "O0", level=level, dtype=dtype, **lists)

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return settings.tf32_products(allowed)

    def measure_time(self, work: Callable[[], object]) -> int:
        """Nanoseconds on the host's clock: Paddle documents times between events in whole milliseconds."""
        if self.device == "cpu":
            return super().measure_time(work)
        return elapsed_between(work, paddle.device.synchronize)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        try:
            return self.compute(op, arrays)
        except (TypeError, RuntimeError) as error:
            if reason := missing_kernel(error):
                again = partial(self._computes, op, arrays, settings.open_scope())
                raise Unsupported(Capability.OPERATIONS, f"{op}: {reason}", again) from error
            raise

    def _computes(self, op: str, arrays: Sequence[Array], scope: Callable[[], AbstractContextManager[None]]) -> bool:
        with scope():
            return bool(self.compute(op, arrays).dtype)

    def global_state(self) -> dict[str, str]:
        return settings.read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        settings.restore_settings(state)


class PaddleFramework(OneGraph):
    """Paddle's documented training API in the dynamic graph.

    Modes: "dygraph"; "dygraph-forced-scaler", in which `GradScaler` works where Paddle turns it off (see
    `frameworks.paddle.training.optimizers`); "data-parallel", which trains every recipe with two ranks.
    """

    member = "frameworks.paddle.distributed:PaddleWorker"
    own_modes = (DYGRAPH, FORCED, DATA_PARALLEL)
    ranks_of_modes = MappingProxyType({DATA_PARALLEL: Ranks(2)})

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        paddle.disable_static()

    def refusals(self) -> Mapping[Capability, str]:
        reasons = refusals(self.device, forced=self.mode == FORCED) | optimizers.REFUSED_OPTIONS
        return self.leave_out_ranks(reasons | {Capability.INTEGER_PRODUCTS: NO_PRODUCTS})

    def supported_capabilities(self) -> Collection[Capability]:
        interfaces = casts_of(self.rule(NumberFormats)) | quantizers_of(self.rule(Quantizers))
        return capabilities_of(self.mode) | interfaces | techniques_of(self.rule(PostTraining))

    def attempts(self) -> Mapping[Capability, Attempt]:
        result: dict[Capability, Attempt] = {
            **dynamic_attempts(forced=self.mode == FORCED),
            **optimizers.refused_attempts(),
            **shipped_attempts(self.parts()),
            **gpu_kernel_attempts(self.device),
            Capability.INTEGER_PRODUCTS: integer_products,
        }
        if self.ranks() is None:
            result |= offload_attempts(self.run_of, [Offload(("activations",), "disk")])
        if self.device == "cpu":
            result |= dict.fromkeys((Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER), offloads_shards)
            result[Capability.BACKGROUND_SAVES] = saves_in_background
        if not has_ranks(self.device):
            return result
        return with_ranks(result, self.ranks_of_a_run, self.ranks(), reshaped="replicated")

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        if self.ranks() is not None:
            return {}
        return {
            "operations": shipped.Operations,
            "layers": shipped.Layers,
            "optimizers": partial(shipped.PaddleOptimizers, forced=self.mode == FORCED),
            **({"functions": PaddleFunctions} if self.mode == DYGRAPH else {}),
        }

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {"PyLayer": "input"}

    def conventions(self) -> Conventions:
        return replace(super().conventions(), adam_correction="weights")

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {
            NumberFormats: PaddleFormats,
            Quantizers: PaddleQuantizers,
            PostTraining: PaddlePostTraining,
            ValueSaver: lambda: SAVER,
        }

    def recompute_variants(self) -> tuple[str, ...]:
        return (REENTRANT, HOOKS)

    def require_recipe(self, recipe: Recipe) -> None:
        super().require_recipe(recipe)
        if recipe.offload is not None and recipe.recompute is not None and recipe.recompute.variant == HOOKS:
            raise Unsupported(Capability.OFFLOAD_ACTIVATIONS, ONE_PAIR, hooks_nest)

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> BaseTrainer:
        return DygraphTrainer(model, recipe, weights, forced=self.mode == FORCED)

    def turns_scaler_off(self, recipe: Recipe) -> bool:
        return self.mode != FORCED and super().turns_scaler_off(recipe)

    def scales_after_bfloat16(self) -> bool:
        return optimizers.scales_by_itself("bfloat16")

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        return layers.function_used(use, inputs, variant)

    def compute(self, op: str, arrays: Sequence[Array]) -> OpResult:
        value = OPERATIONS[op](*(to_tensor(array) for array in arrays))
        return OpResult(to_numpy(value), format_name(value.dtype))

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        self.require(Capability.RECOMPUTE_CASES)
        return layers.run_case(case, x, w, self.variant(variant))


IN_BOTH_GRAPHS = frozenset(
    {
        Capability.FLOAT64_HEADS,
        Capability.SCALING_DISABLED,
        Capability.TWO_OPTIMIZERS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.PLATEAU,
        Capability.MISSING_GRADIENTS,
        Capability.FOREACH,
        Capability.NESTEROV,
        Capability.COUPLED_DECAY,
        Capability.DECAY_EXCLUDED,
        Capability.FROZEN,
        Capability.FREEZE,
        Capability.AMSGRAD,
        Capability.INTEGER_CASTS,
        Capability.LAYER_REUSE,
        Capability.TIED_WEIGHTS,
        Capability.USER_FUNCTION,
        Capability.FUNCTION_USES,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.TRACE,
        Capability.LOAD_ORDER,
        Capability.LIVE_STATE,
        *OPTIMIZERS,
    }
)
"""Capabilities of both graphs without ranks."""
_DYGRAPH = IN_BOTH_GRAPHS | {
    Capability.TWO_LOSSES,
    Capability.ACCUMULATION,
    Capability.PARTIAL_WINDOW,
    Capability.RECOMPUTE,
    Capability.RECOMPUTE_NESTED,
    Capability.RECOMPUTE_CASES,
    Capability.SEGMENT_CALLS,
    Capability.GROUPS,
    Capability.GROUP_RATES,
    Capability.SAVED_BYTES,
    Capability.SAVED_VALUES,
}
_OF_ONE_MODE = {Capability.PLATEAU, Capability.FUNCTION_USES, Capability.SAVED_VALUES}
_IN_ONE_PLACE = OF_ONE_PLACE | {
    Capability.FROZEN,
    Capability.FREEZE,
    Capability.GROUP_RATES,
    Capability.LOAD_ORDER,
    Capability.LIVE_STATE,
}


def capabilities_of(mode: str) -> frozenset[Capability]:
    """Capabilities of the dynamic graph in a mode, before `refusals`."""
    if mode == DYGRAPH:
        return _DYGRAPH
    return _DYGRAPH - _OF_ONE_MODE - (_IN_ONE_PLACE if mode == DATA_PARALLEL else frozenset())


PRECISIONS = {c for c in Capability if c.startswith("precision.O")}
SCOPES = {Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS}
SCALING = {
    Capability.DYNAMIC_SCALING,
    Capability.STATIC_SCALING,
    Capability.SCALING_FACTORS,
    Capability.EXPLICIT_UNSCALE,
    Capability.SECOND_UNSCALE,
}

_TF32_ON_CPU = "Paddle's switches for TensorFloat-32 are those of cuBLAS and cuDNN, which a CPU does not use"
_TF32_BEFORE = "TensorFloat-32 is a format of NVIDIA's GPUs from compute capability 8.0 on"
_KERNELS = "kernels are registered by device and format, and several operations have none for a low-precision one"
_SCOPE_ON_CPU = "on a CPU auto_cast in dynamic mode warns that it makes no effect"
_LOW_MODEL_ON_CPU = (
    "on a CPU amp.decorate in dynamic mode returns the model unchanged, and products of a model that Layer.to makes "
    "low raise: matmul has no low-precision kernel there"
)
_SCALER_ON_CPU = "on a CPU GradScaler in dynamic mode warns and disables itself"
_AVERAGE = "ExponentialMovingAverage raises in dynamic mode, and ModelAverage weighs the updates of a window equally"
_SHARDED_ON_CPU = (
    "group_sharded_parallel, by which dynamic mode shards, takes a GPU, an XPU or a custom device and asserts that"
)
_OWN_FORMAT = "DataParallel adds gradients up in their own format, and takes no hook that would change it"
NO_COUNT = "DataParallel reduces in C++ and neither counts its reductions nor takes a hook that could"
_GPU_KERNELS: dict[Capability, str] = {
    Capability.LOAD_INT8: "llm_int8_linear, by which Paddle multiplies 8-bit weights, has a kernel for GPUs alone",
    Capability.WEIGHT_INT8: "weight_quantize and weight_only_linear have kernels for GPUs alone",
    Capability.WEIGHT_INT4: "weight_quantize and weight_only_linear have kernels for GPUs alone",
    Capability.FLOAT8_PRODUCTS: "fp8_fp8_half_gemm_fused has a kernel for GPUs alone, and matmul none for float8",
}
GROUPS = "GroupWiseWeightObserver has groups of 128 rows alone, whatever its group_size"
_PEAK_ON_CPU = "paddle.device.max_memory_allocated, Paddle's call for it, raises on a CPU"
_RANKS: dict[Capability, str] = {
    Capability.RANKS_OPTIMIZER: _SHARDED_ON_CPU,
    Capability.RANKS_GRADIENTS: _SHARDED_ON_CPU,
    Capability.RANKS_FULL: _SHARDED_ON_CPU,
    Capability.RANKS_HYBRID: _SHARDED_ON_CPU,
    Capability.RANKS_LOW_REDUCTION: _OWN_FORMAT,
    Capability.RANKS_COLLECTIVES: NO_COUNT,
}
_OFFLOAD = dict.fromkeys((Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER), _SHARDED_ON_CPU)


def refused_in_both_graphs(device: str) -> dict[Capability, str]:
    """Unsupported capabilities of both graphs on a device, with reasons."""
    reasons = {Capability.OPERATIONS: _KERNELS, Capability.INT4_GROUP: GROUPS}
    if device == "cpu":
        return reasons | {Capability.TF32: _TF32_ON_CPU, Capability.PEAK_BYTES: _PEAK_ON_CPU} | _GPU_KERNELS
    ampere = device == "cuda" and paddle.device.cuda.get_device_capability() >= (8, 0)
    return reasons if ampere else reasons | {Capability.TF32: _TF32_BEFORE}


def refusals(device: str, *, forced: bool) -> dict[Capability, str]:
    """Unsupported capabilities of the dynamic graph on a device, with reasons; `forced`: the scaler works on a CPU."""
    reasons = {Capability.AVERAGE: _AVERAGE}
    if device == "cpu":
        reasons |= dict.fromkeys(PRECISIONS, _LOW_MODEL_ON_CPU)
        reasons |= dict.fromkeys((Capability.O1_FLOAT16, Capability.O1_BFLOAT16, *SCOPES), _SCOPE_ON_CPU)
        reasons |= {} if forced else dict.fromkeys(SCALING, _SCALER_ON_CPU)
        reasons |= _RANKS | _OFFLOAD | {Capability.BACKGROUND_SAVES: NO_BACKGROUND}
    return reasons | refused_in_both_graphs(device)


def _weight(value: float = 1.0) -> Any:
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(value))
    return weight, paddle.optimizer.SGD(0.5, parameters=[weight])


def _step(scaler: Any, weight: Any, optimizer: Any, gradient: float) -> tuple[float, float]:
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
    return weight.item(), float(scaler.state_dict()["scale"][0])


def _dynamic() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    return _step(scaler, weight, optimizer, float("inf")) == (1.0, 4.0)


def _static() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, use_dynamic_loss_scaling=False)
    return scaler.scale(weight.sum()).item() == 8.0 and _step(scaler, weight, optimizer, float("inf")) == (1.0, 8.0)


def _factors() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, incr_ratio=4.0, decr_ratio=0.25, incr_every_n_steps=1)
    grown = _step(scaler, weight, optimizer, 1.0)
    return grown == (0.5, 32.0) and _step(scaler, weight, optimizer, float("nan")) == (0.5, 8.0)


def _unscale() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    before = weight.grad.item()
    scaler.unscale_(optimizer)
    return before == 24.0 and weight.grad.item() == 3.0


def _unscale_twice() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError:
        return True
    return False


def _average() -> bool:
    weight, _ = _weight()
    average = paddle.static.ExponentialMovingAverage(0.5)
    average.update()
    return weight.item() == 1.0


def dynamic_attempts(*, forced: bool) -> Mapping[Capability, Attempt]:
    """The attempts; each leaves the process-wide settings as they were.

    Deprecation warnings of NumPy caused by Paddle's own code are ignored.

    Args:
        forced: a `GradScaler` works where Paddle turns it off.
    """
    return {capability: partial(_alone, attempt, forced=forced) for capability, attempt in _ATTEMPTS.items()}


def _alone(attempt: Attempt, *, forced: bool) -> bool:
    before = settings.read_settings()
    try:
        with quiet(), forced_scaler() if forced else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return attempt()
    finally:
        settings.restore_settings(before)


def _scope(dtype: str, **lists: Any) -> str:
    x = paddle.ones([2, 2])
    with paddle.amp.auto_cast(level="O1", dtype=dtype, **lists):
        return format_name(paddle.matmul(x, x).dtype)


def _low(dtype: str, *, master: bool, decorated: bool) -> bool:
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters(), multi_precision=master)
    if decorated:
        paddle.amp.decorate(
            models=layer, optimizers=optimizer, level="O2", dtype=dtype, master_weight=None if master else False
        )
    else:
        layer.to(dtype=dtype)
    if format_name(layer.weight.dtype) != dtype:
        return False
    with paddle.amp.auto_cast(level="O2", dtype=dtype) if decorated else nullcontext():
        output = layer(paddle.ones([2, 2], dtype))
    output.astype("float32").sum().backward()
    optimizer.step()
    return bool(optimizer.state_dict().get("master_weights")) == master


def _low_model(dtype: str, *, master: bool) -> bool:
    """Returns whether a low model by `amp.decorate` or `Layer.to` makes an update, with float32 masters or without."""
    for decorated in (True, False):
        with suppress(Exception):  # Paddle raises various types for what it has no kernel for
            if _low(dtype, master=master, decorated=decorated):
                return True
    return False


def _tf32() -> bool:
    ones = paddle.full([16, 16], 1.0 + 2.0**-12)
    products = []
    for allowed in (True, False):
        with settings.tf32_products(allowed):
            products.append(paddle.matmul(ones, ones).numpy())
    return not np.array_equal(*products)


def _operations() -> bool:
    for dtype in ("float16", "bfloat16"):
        for name, arrays in CATALOGUE.items():
            tensors = [to_tensor(array) for array in arrays()]
            OPERATIONS[name](*(t.astype(dtype) if t.is_floating_point() else t for t in tensors))
    return True


_ATTEMPTS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.EXPLICIT_UNSCALE: _unscale,
    Capability.SECOND_UNSCALE: _unscale_twice,
    Capability.AVERAGE: _average,
    Capability.O1_FLOAT16: lambda: _scope("float16") == "float16",
    Capability.O1_BFLOAT16: lambda: _scope("bfloat16") == "bfloat16",
    Capability.O2_FLOAT16: partial(_low_model, "float16", master=True),
    Capability.O2_BFLOAT16: partial(_low_model, "bfloat16", master=True),
    Capability.O3_FLOAT16: partial(_low_model, "float16", master=False),
    Capability.O3_BFLOAT16: partial(_low_model, "bfloat16", master=False),
    Capability.AUTOCAST_SCOPE: lambda: _scope("bfloat16") == "bfloat16",
    Capability.AUTOCAST_LISTS: lambda: (
        _scope("bfloat16") == "bfloat16" and _scope("bfloat16", custom_black_list={"matmul"}) == "float32"
    ),
    Capability.TF32: _tf32,
    Capability.OPERATIONS: _operations,
    Capability.PEAK_BYTES: lambda: int(paddle.device.max_memory_allocated()) > 0,
}
