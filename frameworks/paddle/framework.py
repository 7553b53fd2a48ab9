"""`PaddleFramework`: PaddlePaddle on one device, in dynamic or static mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import paddle
from packaging.version import Version
from paddle.base import core

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, Precision, Recipe
from frameworks.base import BaseFramework, BaseTrainer, elapsed
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    Declaration,
    OpResult,
    RecomputeCase,
    RecomputeResult,
    ScalerRule,
    Unsupported,
)
from frameworks.paddle import recompute, settings
from frameworks.paddle.arrays import format_name, to_numpy, to_tensor
from frameworks.paddle.declarations import FORCED, MODES, STATIC, declaration
from frameworks.paddle.layers import HOOKS, REENTRANT
from frameworks.paddle.operations import OPERATIONS, listed_names, missing_kernel
from frameworks.paddle.probes import dynamic_attempts
from frameworks.paddle.scaler import scales_by_itself
from frameworks.paddle.trainer import DygraphTrainer

PIR = Version("3.0.0")
"""From here on `auto_cast` works in static mode; before, it raises there."""


class PaddleFramework(BaseFramework):
    """Paddle's documented training API.

    Modes: "dygraph"; "static", a program per batch shape in the static graph; "dygraph-forced-scaler", which drives
    `GradScaler` where Paddle itself turns it off (see `frameworks.paddle.forced`).
    """

    name = "paddle"
    modes: tuple[str, ...] = MODES

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        if Version(paddle.__version__) < PIR:
            self.modes = tuple(name for name in MODES if name != STATIC)
        super().__init__(device, mode)
        paddle.device.set_device("gpu" if self.device == "cuda" else "cpu")
        core.set_num_threads(1)
        if self.mode == STATIC:
            paddle.enable_static()
        else:
            paddle.disable_static()

    def devices(self) -> tuple[str, ...]:
        cuda = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
        return ("cpu", "cuda") if cuda else ("cpu",)

    def version(self) -> str:
        return str(paddle.version.full_version)

    def environment(self) -> dict[str, str]:
        return settings.read_environment(self.device)

    def declares(self, capability: Capability) -> Declaration:
        return declaration(capability, self.device, self.mode)

    def attempts(self) -> Mapping[Capability, Attempt]:
        if self.mode == STATIC:
            from frameworks.paddle.static.probes import static_attempts

            return static_attempts(self.device)
        return dynamic_attempts(self.mode)

    def conventions(self) -> Conventions:
        if self.mode == STATIC:
            rule = ScalerRule(minimum=1.0, maximum=float(np.finfo(np.float32).max))
            return Conventions(adam_correction="float32", compiled=True, scaler=rule)
        return Conventions(adam_correction="float32")

    def recompute_variants(self) -> tuple[str, ...]:
        return () if self.mode == STATIC else (REENTRANT, HOOKS)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseTrainer:
        self.require_recipe(recipe)
        if any(head.format == "float64" for head in model.heads.heads):
            self.require(Capability.FLOAT64_HEADS)
        start = model.weights(recipe.seed) if weights is None else weights
        dynamic = isinstance(recipe.scaling, DynamicScaling) and recipe.scaling.enabled
        if dynamic and self.mode != FORCED and recipe.precision.format == "bfloat16":
            reason = "GradScaler warns and turns itself off where the last precision scope was a bfloat16 one"
            raise Unsupported(Capability.DYNAMIC_SCALING, reason, self._scales_after_bfloat16)
        if self.mode == STATIC:
            from frameworks.paddle.static.trainer import StaticTrainer

            return StaticTrainer(model, recipe, start)
        return DygraphTrainer(model, recipe, start, forced=self.mode == FORCED)

    def _scales_after_bfloat16(self) -> bool:
        if self.mode == STATIC:
            from frameworks.paddle.static.probes import scales_after_bfloat16

            return scales_after_bfloat16(self.device)
        return scales_by_itself("bfloat16")

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

    def tf32(self, allowed: bool) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return settings.tf32_products(allowed)

    def timed(self, work: Callable[[], object]) -> int:
        """By the host's clock: Paddle documents the time between two events as a whole number of milliseconds."""
        if self.device == "cpu":
            return super().timed(work)

        def waited() -> None:
            work()
            paddle.device.synchronize()

        paddle.device.synchronize()
        return elapsed(waited)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        try:
            return self._run_op(op, arrays)
        except (TypeError, RuntimeError) as error:
            if reason := missing_kernel(error):
                again = partial(self._runs, op, arrays, settings.open_scope())
                raise Unsupported(Capability.OPERATIONS, f"{op}: {reason}", again) from error
            raise

    def _runs(self, op: str, arrays: Sequence[Array], scope: Callable[[], AbstractContextManager[None]]) -> bool:
        with scope():
            return bool(self._run_op(op, arrays).dtype)

    def _run_op(self, op: str, arrays: Sequence[Array]) -> OpResult:
        if self.mode == STATIC:
            from frameworks.paddle.static.programs import run_operation

            return run_operation(OPERATIONS[op], arrays)
        value = OPERATIONS[op](*(to_tensor(array) for array in arrays))
        return OpResult(to_numpy(value), format_name(value.dtype))

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        self.require(Capability.RECOMPUTE_CASES)
        return recompute.run_case(case, x, w, self.variant(variant))

    def global_state(self) -> dict[str, str]:
        return settings.read_settings()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        settings.restore_settings(state)
