"""TensorFlow with Keras 3 on one device, in one mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import keras
import tensorflow as tf

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import DynamicScaling, Precision, Recipe
from frameworks.base import BaseFramework, elapsed
from frameworks.contract import (
    Attempt,
    Capability,
    Conventions,
    OpResult,
    RecomputeCase,
    RecomputeResult,
)
from frameworks.tf.declarations import conventions, refusals
from frameworks.tf.network import VARIANTS
from frameworks.tf.operations import graph_operations, run_op
from frameworks.tf.probes import attempts
from frameworks.tf.recompute import recompute
from frameworks.tf.scaler import has_factors_of
from frameworks.tf.settings import (
    NO_REWRITE,
    REWRITES,
    describe,
    dtype_policy,
    graph_rewrite,
    grow_memory,
    pin_threads,
    read_global_state,
    rewrite_lists,
    tensor_float_32,
    write_global_state,
)
from frameworks.tf.trainer import TensorFlowTrainer


class TensorFlowFramework(BaseFramework):
    """Modes: a `tf.function`, eager execution, a `tf.function` compiled by XLA, grappler's automatic mixed precision.

    In "rewrite" the layers are float32 and level O1 is TensorFlow's graph rewrite; in the other modes a level is a
    Keras dtype policy.
    """

    name = "tf"
    modes = ("graph", "eager", "xla", "rewrite")

    def __init__(self, device: str = "auto", mode: str | None = None) -> None:
        pin_threads()
        grow_memory()
        super().__init__(device, mode)

    def devices(self) -> tuple[str, ...]:
        return ("cpu", "cuda") if tf.config.list_physical_devices("GPU") else ("cpu",)

    def version(self) -> str:
        return f"{tf.__version__}+keras.{keras.__version__}"

    def environment(self) -> dict[str, str]:
        return describe(self.device)

    def refusals(self) -> Mapping[Capability, str]:
        return refusals(self.device, self.mode)

    def attempts(self) -> Mapping[Capability, Attempt]:
        return attempts(self.mode, self._place)

    def conventions(self) -> Conventions:
        return conventions(self.mode)

    def recompute_variants(self) -> tuple[str, ...]:
        return VARIANTS

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> TensorFlowTrainer:
        self.require_recipe(recipe)
        if isinstance(recipe.scaling, DynamicScaling) and not has_factors_of(recipe.scaling):
            raise self.refusal(Capability.SCALING_FACTORS)
        run = TensorFlowTrainer(
            model,
            recipe,
            weights,
            mode=self.mode,
            policy=self._policy(recipe.precision),
            rewrite=self._rewrite(recipe.precision),
            place=self._place,
        )
        return self.bound(run)

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        asked = Capability.of(precision)
        if asked is not None:
            self.require(asked)
        if wide or low:
            self.require(Capability.AUTOCAST_LISTS)
        chosen = precision if enabled else Precision()
        named = rewrite_lists(graph_operations(low), graph_operations(wide)) if wide or low else nullcontext()
        return self._scope(self._policy(chosen), self._rewrite(chosen), named)

    @contextmanager
    def _scope(self, policy: str, rewrite: str | None, named: AbstractContextManager[None]) -> Iterator[None]:
        with dtype_policy(policy), graph_rewrite(rewrite), named:
            yield

    def tf32(self, allowed: bool) -> AbstractContextManager[None]:
        self.require(Capability.TF32)
        return tensor_float_32(allowed)

    def timed(self, work: Callable[[], object]) -> int:
        """By a clock of the host's, between two waits for every device: TensorFlow gives no events to its users."""
        if self.device == "cpu":
            return super().timed(work)

        def waited() -> None:
            work()
            tf.test.experimental.sync_devices()

        tf.test.experimental.sync_devices()
        return elapsed(waited)

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        with tf.device(self._place):
            return run_op(op, arrays, self.mode)

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        chosen = self.variant(variant)
        with tf.device(self._place):
            return recompute(case, x, w, chosen, self.mode)

    def global_state(self) -> dict[str, str]:
        return read_global_state()

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        write_global_state(state)

    @property
    def _place(self) -> str:
        return "/GPU:0" if self.device == "cuda" else "/CPU:0"

    def _policy(self, precision: Precision) -> str:
        if self.mode == "rewrite" or precision.level == "O0":
            return "float32"
        return f"mixed_{precision.format}" if precision.level == "O1" else precision.format

    def _rewrite(self, precision: Precision) -> str | None:
        if self.mode != "rewrite":
            return None
        return REWRITES[precision.format] if precision.level == "O1" else NO_REWRITE
