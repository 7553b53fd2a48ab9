"""The base of Paddle's two graphs on one device, `OneGraph`, and the dynamic graph, `PaddleFramework`."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import paddle
from paddle.base import core

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import LEVELS_OF, DynamicScaling, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.base import (
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
from frameworks.paddle.declarations import capabilities_of, dynamic_attempts, refusals
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
from frameworks.paddle.training.trainer import SAVER, DygraphTrainer, saves_in_background
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
