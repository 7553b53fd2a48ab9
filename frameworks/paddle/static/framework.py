"""`StaticFramework`: PaddlePaddle's static graph on one device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import Recipe
from frameworks.base import BaseTrainer, casts_of, quantizer_attempts, technique_attempts, with_ranks
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    FunctionFormat,
    FunctionResult,
    NumberFormats,
    OpResult,
    ScalerRule,
)
from frameworks.paddle.core.layers import OPERATIONS
from frameworks.paddle.core.settings import STATIC
from frameworks.paddle.declarations import IN_BOTH_GRAPHS
from frameworks.paddle.framework import OneGraph, has_ranks
from frameworks.paddle.quantization import PaddlePostTraining, PaddleQuantizers, gpu_kernel_attempts
from frameworks.paddle.static import attempts
from frameworks.paddle.static.declarations import acts, refusals, static_attempts
from frameworks.paddle.static.programs import PlateauProgram, StaticFormats, function_used, run_operation
from frameworks.paddle.static.trainer import StaticTrainer
from frameworks.paddle.training.optimizers import REFUSED_IN_BOTH, refused_attempts


class StaticFramework(OneGraph):
    """Paddle's documented training API in the static graph: a program for each shape of a batch."""

    member = "frameworks.paddle.static.ranks:StaticMember"
    own_modes = (STATIC,)
    plateau_run = PlateauProgram

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        paddle.enable_static()

    def refusals(self) -> Mapping[Capability, str]:
        refused = refusals(self.device)
        return {c: why for c, why in refused.items() if has_ranks(self.device) or not c.startswith("ranks.")}

    def supported_capabilities(self) -> Collection[Capability]:
        return IN_BOTH_GRAPHS | casts_of(self.rule(NumberFormats))

    def attempts(self) -> Mapping[Capability, Attempt]:
        here: dict[Capability, Attempt] = {
            **static_attempts(self.device),
            **{c: attempt for c, attempt in refused_attempts().items() if c in REFUSED_IN_BOTH},
            **gpu_kernel_attempts(self.device),
            **quantizer_attempts(PaddleQuantizers()),
            **technique_attempts(PaddlePostTraining()),
        }
        return with_ranks(here, self.ranks_of_a_run, None, reshaped="replicated") if has_ranks(self.device) else here

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return {"static_pylayer": "input"}

    def conventions(self) -> Conventions:
        rule = ScalerRule(minimum=1.0, maximum=float(np.finfo(np.float32).max))
        return Conventions(
            adam_correction="float32",
            adam_share="float32",
            rmsprop_epsilon="inside",
            rmsprop_rate="inside",
            compiled=True,
            scaler=rule,
            plateau_waits=True,
            plateau_signed=True,
        )

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> BaseTrainer:
        return StaticTrainer(model, recipe, weights)

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        self.require(Capability.FUNCTION_USES)
        if variant is not None:
            self.require(Capability.RECOMPUTE)
        return function_used(use, inputs)

    def rules(self) -> Mapping[type, Callable[[], Any]]:
        return {NumberFormats: StaticFormats}

    def scales_after_bfloat16(self) -> bool:
        return acts(self.device, attempts.scales_after_bfloat16)

    def compute(self, op: str, arrays: Sequence[Array]) -> OpResult:
        return run_operation(_OPERATIONS[op], arrays)


_OPERATIONS = OPERATIONS | {"squared_error": lambda a, b: paddle.nn.functional.square_error_cost(a, b).mean()}
"""The operations of the static graph; squared error is written out, because `mse_loss` refuses inputs to cast."""
