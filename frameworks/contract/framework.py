"""`Framework`: a framework on one device, in one mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from fixtures.arrays import Array
from fixtures.model import FunctionUse, Model
from fixtures.recipe import FormatName, Offload, Precision, Ranks, Recipe
from fixtures.schedules import Plateau
from frameworks.contract.capabilities import Capability, Declaration
from frameworks.contract.conventions import Conventions
from frameworks.contract.rank_group import RankGroup
from frameworks.contract.trainer import Trainer
from frameworks.contract.values import (
    DataRun,
    FormatRequest,
    FunctionFormat,
    FunctionResult,
    LoadedRun,
    OpResult,
    Part,
    RecomputeCase,
    RecomputeResult,
    RowOrder,
    Shipped,
)

R = TypeVar("R")


class Framework(Protocol):
    """A framework on one device, in one mode. Made as `Class(device, mode)`; `mode=None` takes the first of `modes`."""

    name: str
    modes: tuple[str, ...]
    device: str
    mode: str

    def version(self) -> str:
        """The framework's own version, such as "2.13.0+cpu"."""

    def environment(self) -> dict[str, str]:
        """Device model, driver, precision switches, thread counts and versions that results may depend on."""

    def declares(self, capability: Capability) -> Declaration:
        """The declaration of the capability for this device and mode: supported, or the reason why not."""

    def probe(self, capability: Capability) -> bool | None:
        """Runs the framework's own call without this adapter's guards, and returns whether it took effect.
        True: the technique took effect; False: it raised, warned or had no effect; None: nothing to observe.
        """

    def conventions(self) -> Conventions:
        """The conventions that hold here, as the framework documents them."""

    def recompute_variants(self) -> tuple[str, ...]:
        """Names of the recomputation variants that the framework offers, its default first; empty without any.

        Any other name is refused with ValueError, by `trainer` and by `recompute`.
        """

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        """Ways to give an operation a user-written backward pass, each with its documented format, the default first.

        Empty if USER_FUNCTION is not supported.
        """

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        """Runs a user's operation on a, b and c (n,), float32, in the open precision scope.

        Args:
            variant: the recomputation variant under which it runs, None for none.
        Raises:
            Unsupported: FUNCTION_USES.
        """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """A new run; `weights` are its canonical initial weights, None for `model.weights(recipe.seed)`.

        Raises:
            Unsupported: the recipe needs an unsupported capability.
        """

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """The run that `trainer` gives, by the framework's own calls, without the library whose loop this mode drives.

        Raises:
            Unsupported: PLAIN_LOOP, if the mode drives no library's loop; or as in `trainer`.
        """

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """The effect of a request to the mode's library for "float16" or "bfloat16", by its documented call alone.

        Raises:
            Unsupported: LIBRARY_REQUESTS.
            Exception: the library's own refusal.
        """

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        """A checkpoint in a format, loaded and trained under a request for mixed bfloat16, by the documented calls.

        Each update moves weights, which start at 1, by about the rate.

        Raises:
            Unsupported: LOADED_CHECKPOINT.
        """

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        """Two epochs of eight rows by the library's own data loader, two rows a window: unbroken, and resumed.

        A checkpoint is written after `windows` windows (4: the end of the first epoch); both results begin there.

        Raises:
            Unsupported: DATA_POSITION.
        """

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> RankGroup:
        """The rank group of a new run, with the recipe's number of ranks; `trainer` presents it as one run.

        Raises:
            Unsupported: the recipe names no ranks, or needs an unsupported capability.
        """

    def ranks(self) -> Ranks | None:
        """This mode's ranks, for recipes without ranks; None for none."""

    def offload(self) -> Offload | None:
        """This mode's offload, for recipes without offload; None for none."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """The framework's own precision scope; `wide` and `low` name operations of `run_op` for its user lists."""

    def tf32(self, allowed: bool | None) -> AbstractContextManager[None]:
        """A scope in which products of float32 matrices may, or may not, round their operands to TensorFloat-32.

        Outside of such scopes they may not, whatever the framework's default is. None allows what that default allows.

        Raises:
            Unsupported: TF32, if no call switches it within a process, or the device has no such products.
        """

    def measure_time(self, work: Callable[[], object]) -> int:
        """Runs `work` alone on the device and returns how long it took, in nanoseconds.

        Waits for the device's queue before and after. If the framework has device events, the time is that between two
        events, else that of the host's clock. On a CPU it is the CPU time of this process, which excludes waiting for a
        processor.
        """

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        """Runs operation `op` (a name of `frameworks.operations`) in the open precision scope."""

    def get_shipped(self, part: Part) -> Shipped:
        """The operations, layers, optimizers or functions that the framework ships, with examples.

        Raises:
            Unsupported: the adapter has no examples of them.
        """

    def rule(self, kind: type[R]) -> R:
        """The documented rule of a technique, or the interface to it.

        Args:
            kind: a class marked by `register_rule`, such as `QatRule` or `Quantizers`.
        Raises:
            Unsupported: the capability.
        """

    def count_schedule_steps(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        """The number of schedule steps after each update of a run, by the training loop's own frequency setting.

        Args:
            frequency: updates between two steps of the schedule.
            accumulation: micro-batches of a window.
            epochs: micro-batches of each epoch.
        Raises:
            Unsupported: SCHEDULE_FREQUENCY.
        """

    def plateau(self, plateau: Plateau, metrics: Sequence[float], saved: int | None = None) -> tuple[float, ...]:
        """The learning rate after each metric, from a rate of 1, by the schedule that follows a metric.

        Args:
            saved: number of metrics after which the schedule is saved and a new one is restored; None for no save.
        Raises:
            Unsupported: PLATEAU, also for settings that the framework does not have.
        """

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        """The gradient (n,), float32, that an SGD step applies after the loop's own call has clipped it to a norm.

        The user's step makes these calls inside the library's loop.

        Args:
            gradient: the unscaled gradient.
            limit: largest norm.
            scale: the loss scale.
        Raises:
            Unsupported: MANUAL_STEP.
        """

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        """The gradient (n,), float32, that a hook before the optimizer step reads, from this unscaled gradient.

        Args:
            scale: the loss scale.
            fused: True if the optimizer unscales gradients in its own step.
        Raises:
            Unsupported: STEP_HOOK, if the training loop documents no hook that reads unscaled gradients.
        """

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        """Σ tanh(x·w) through the framework's recomputation call, float32, with gradients for x (n, m) and w (m, k).

        "plain" does not recompute. "positional" to "keyword" name how x and w are passed. "no-grad-input": x needs no
        gradient and w is closed over. "weights-changed": w is multiplied by 3 in place between forward and backward.
        "raises": the function raises RuntimeError when it is run for the second time; this call raises it.
        "draws-python", "draws-numpy": x is multiplied by a power of two drawn from that generator, in each run.
        """

    def global_state(self) -> dict[str, str]:
        """Process-wide settings that a run may leak: default formats, policies, gradient mode, scopes, threads."""

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        """Restores settings that `global_state` returned."""
