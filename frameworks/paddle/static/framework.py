"""`StaticFramework`: PaddlePaddle's static graph on one device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import paddle

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import quantizer_attempts, technique_attempts
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    FunctionFormat,
    OpResult,
    ScalerRule,
)
from frameworks.paddle.core.functions import STATIC_WAYS
from frameworks.paddle.core.modes import STATIC
from frameworks.paddle.core.operations import OPERATIONS
from frameworks.paddle.quantization.attempts import gpu_kernel_attempts
from frameworks.paddle.quantization.post_training import PaddlePostTraining
from frameworks.paddle.quantization.quantizers import PaddleQuantizers
from frameworks.paddle.static.declarations import refusals
from frameworks.paddle.static.probes import scales_after_bfloat16, static_attempts
from frameworks.paddle.static.programs import run_operation
from frameworks.paddle.static.trainer import StaticTrainer
from frameworks.paddle.training.one_graph import OneGraph
from frameworks.paddle.training.options import REFUSED_IN_BOTH, refused_attempts


class StaticFramework(OneGraph):
    """Paddle's documented training API in the static graph: a program for each shape of a batch."""

    own_modes = (STATIC,)

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        super().__init__(device, mode)
        paddle.enable_static()

    def refusals(self) -> Mapping[Capability, str]:
        return refusals(self.device)

    def attempts(self) -> Mapping[Capability, Attempt]:
        options = {capability: partial(_without_place, each) for capability, each in self.option_attempts().items()}
        refused: dict[Capability, Attempt] = {
            each: attempt for each, attempt in refused_attempts().items() if each in REFUSED_IN_BOTH
        }
        refused |= gpu_kernel_attempts(self.device)
        quantizing = quantizer_attempts(PaddleQuantizers()) | technique_attempts(PaddlePostTraining())
        return {**static_attempts(self.device), **options, **quantizing, **refused}

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        return STATIC_WAYS

    def conventions(self) -> Conventions:
        rule = ScalerRule(minimum=1.0, maximum=float(np.finfo(np.float32).max))
        return Conventions(
            adam_correction="float32",
            adam_share="float32",
            rmsprop_epsilon="inside",
            rmsprop_rate="inside",
            compiled=True,
            scaler=rule,
        )

    def run(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> StaticTrainer:
        return StaticTrainer(model, recipe, weights)

    def scales_after_bfloat16(self) -> bool:
        return scales_after_bfloat16(self.device)

    def compute(self, op: str, arrays: Sequence[Array]) -> OpResult:
        return run_operation(_OPERATIONS[op], arrays)


_OPERATIONS = OPERATIONS | {"squared_error": lambda a, b: paddle.nn.functional.square_error_cost(a, b).mean()}
"""`mse_loss` refuses what `auto_cast` would cast."""


def _without_place(attempt: Attempt) -> bool:
    """The attempt, without the warning that `paddle.full_like` gives of its own call in a static graph."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Tensor do not have 'place' interface")
        return attempt()
