"""`PaddleFramework`: PaddlePaddle's dynamic graph on one device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import paddle

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import Offload, Ranks, Recipe
from frameworks.base import (
    BaseShipped,
    BaseTrainer,
    casts_of,
    offload_attempts,
    quantizers_of,
    shipped_attempts,
    techniques_of,
    with_ranks,
)
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
    Unsupported,
)
from frameworks.paddle import shipped
from frameworks.paddle.core import layers
from frameworks.paddle.core.devices import ONE_PAIR, format_name, hooks_nest, shards_leave, to_numpy, to_tensor
from frameworks.paddle.core.layers import HOOKS, OPERATIONS, REENTRANT
from frameworks.paddle.core.settings import DATA_PARALLEL, DYGRAPH, FORCED
from frameworks.paddle.declarations import capabilities_of, dynamic_attempts, refusals
from frameworks.paddle.quantization import (
    NO_PRODUCTS,
    PaddleFormats,
    PaddlePostTraining,
    PaddleQuantizers,
    gpu_kernel_attempts,
    integer_products,
)
from frameworks.paddle.shipped import PaddleFunctions, PaddleOptimizers
from frameworks.paddle.training import optimizers
from frameworks.paddle.training.one_graph import OneGraph, has_ranks
from frameworks.paddle.training.optimizers import scales_by_itself
from frameworks.paddle.training.trainer import DygraphTrainer


class PaddleFramework(OneGraph):
    """Paddle's documented training API in the dynamic graph.

    Modes: "dygraph"; "dygraph-forced-scaler", which drives `GradScaler` where Paddle itself turns it off (see
    `frameworks.paddle.training.optimizers`); "data-parallel", which trains every recipe with two ranks.
    """

    member = "frameworks.paddle.distributed.ranks:PaddleWorker"
    own_modes = (DYGRAPH, FORCED, DATA_PARALLEL)
    ranks_of_modes = MappingProxyType({DATA_PARALLEL: Ranks(2)})

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        paddle.disable_static()

    def refusals(self) -> Mapping[Capability, str]:
        refused = refusals(self.device, forced=self.mode == FORCED) | optimizers.REFUSED_OPTIONS
        refused |= {Capability.INTEGER_PRODUCTS: NO_PRODUCTS}
        return {c: why for c, why in refused.items() if has_ranks(self.device) or not c.startswith("ranks.")}

    def supported_capabilities(self) -> Collection[Capability]:
        interfaces = casts_of(self.rule(NumberFormats)) | quantizers_of(self.rule(Quantizers))
        return capabilities_of(self.mode) | interfaces | techniques_of(self.rule(PostTraining))

    def attempts(self) -> Mapping[Capability, Attempt]:
        here: dict[Capability, Attempt] = {
            **dynamic_attempts(forced=self.mode == FORCED),
            **optimizers.refused_attempts(),
            **shipped_attempts(self.parts()),
            **gpu_kernel_attempts(self.device),
            Capability.INTEGER_PRODUCTS: integer_products,
        }
        if self.ranks() is None:
            here |= offload_attempts(self.run_of, [Offload(("activations",), "disk")])
        if self.device == "cpu":
            here |= dict.fromkeys((Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER), shards_leave)
        if not has_ranks(self.device):
            return here
        return with_ranks(here, self.ranks_of_a_run, self.ranks(), reshaped="replicated")

    def parts(self) -> Mapping[Part, Callable[[], BaseShipped]]:
        if self.ranks() is not None:
            return {}
        optimizers = partial(PaddleOptimizers, forced=self.mode == FORCED)
        shared: dict[Part, Callable[[], BaseShipped]] = {
            "operations": shipped.Operations,
            "layers": shipped.Layers,
            "optimizers": optimizers,
        }
        return shared | ({"functions": PaddleFunctions} if self.mode == DYGRAPH else {})

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {"PyLayer": "input"}

    def conventions(self) -> Conventions:
        return Conventions(
            adam_correction="weights",
            adam_share="float32",
            rmsprop_epsilon="inside",
            rmsprop_rate="inside",
            plateau_waits=True,
            plateau_signed=True,
        )

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {NumberFormats: PaddleFormats, Quantizers: PaddleQuantizers, PostTraining: PaddlePostTraining}

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
        return scales_by_itself("bfloat16")

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
