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
        """Whether the capability is supported here, or why not."""

    def probe(self, capability: Capability) -> bool | None:
        """Runs the framework's own call without this adapter's guards: did it take effect? None: nothing to observe.
        True: the technique took effect; False: it raised, warned or had no effect.
        """

    def conventions(self) -> Conventions:
        """The conventions that hold here, as the framework documents them."""

    def recompute_variants(self) -> tuple[str, ...]:
        """Names of the recomputation variants that the framework offers, its default first; empty without any.

        Any other name is refused with ValueError, by `trainer` and by `recompute`.
        """

    def function_ways(self) -> Mapping[str, FunctionFormat]:
        """Ways to give an operation a backward pass of the user's, the default first, with its documented format.

        Empty where USER_FUNCTION is not supported.
        """

    def function_used(
        self, use: FunctionUse, inputs: tuple[Array, Array, Array], variant: str | None = None
    ) -> FunctionResult:
        """Uses an operation of the user's on a, b and c (n,), float32, inside whatever precision scope is open.

        Args:
            variant: the recomputation variant that it is run by, None for none.
        Raises:
            Unsupported: FUNCTION_USES.
        """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """A new run; `weights` are the canonical ones to start from, None for `model.weights(recipe.seed)`.

        Raises:
            Unsupported: the recipe needs an unsupported capability.
        """

    def plain_trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """The run that `trainer` gives, by the framework's own calls, without the library whose loop this mode drives.

        Raises:
            Unsupported: PLAIN_LOOP, where the mode's loop is no other library's, or what `trainer` refuses.
        """

    def request_format(self, format_name: FormatName) -> FormatRequest:
        """What the mode's library makes of a request for "float16" or "bfloat16", by its documented call alone.

        Raises:
            Unsupported: LIBRARY_REQUESTS.
            Exception: the library's own refusal.
        """

    def loaded_run(self, saved: FormatName, updates: int, rate: float) -> LoadedRun:
        """A checkpoint in a format, loaded and trained under a request for mixed bfloat16, by the documented calls.

        Weights of 1 are moved by about the rate in each update.

        Raises:
            Unsupported: LOADED_CHECKPOINT.
        """

    def resumed_epoch(self, order: RowOrder, windows: int) -> tuple[DataRun, DataRun]:
        """Two epochs of eight rows by the library's own data loader, two rows a window: unbroken, and resumed.

        A checkpoint is written after so many windows (4 for the end of the first epoch); both runs are reported from
        there on.

        Raises:
            Unsupported: DATA_POSITION.
        """

    def rank_group(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> RankGroup:
        """The ranks of a new run, as many as the recipe says; `trainer` gives a view of them as one run.

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

        Outside of such scopes they may not, whatever the framework lets them by default; None is that default.

        Raises:
            Unsupported: TF32, where nothing switches it within a process, or the device has no such products.
        """

    def measure_time(self, work: Callable[[], object]) -> int:
        """Runs `work` alone on the device and returns how long it took, in nanoseconds.

        The device's queue is waited for before and after. The time is that between two events of the device where the
        framework has them, the host's elsewhere; on a CPU it is the time that this process kept processors busy, which
        waiting for one is no part of.
        """

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        """Runs operation `op` (a name of `frameworks.operations`) inside whatever precision scope is open."""

    def get_shipped(self, part: Part) -> Shipped:
        """The operations, layers or optimizers that the framework ships.

        Raises:
            Unsupported: the adapter has no examples of them.
        """

    def rule(self, kind: type[R]) -> R:
        """The rule of a technique as the framework documents it, or the interface through which it is used.

        Args:
            kind: a class marked by `offered`, such as `QatRule` or `Quantizers`.
        Raises:
            Unsupported: the capability.
        """

    def count_schedule_steps(self, *, frequency: int, accumulation: int, epochs: Sequence[int]) -> tuple[int, ...]:
        """The steps of a schedule after each update of a run, by the training loop's own setting for its frequency.

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
            saved: the schedule is saved after so many metrics, and a new one goes on from what was saved.
        Raises:
            Unsupported: PLATEAU, also for settings that the framework does not have.
        """

    def clip_in_manual_step(self, gradient: Array, *, limit: float, scale: float) -> Array:
        """The gradient (n,), float32, that a step of SGD applies after the loop's own call that clips it to a norm.

        The user's step makes these calls inside the library's loop.

        Args:
            gradient: unscaled.
            limit: largest norm.
            scale: the loss scale.
        Raises:
            Unsupported: MANUAL_STEP.
        """

    def gradient_in_hook(self, gradient: Array, *, scale: float, fused: bool) -> Array:
        """The gradient (n,), float32, that a hook before the optimizer step finds, of weights with this unscaled one.

        Args:
            scale: the loss scale.
            fused: whether the optimizer unscales gradients in its own step.
        Raises:
            Unsupported: STEP_HOOK, where the training loop documents no hook that finds unscaled gradients.
        """

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        """Σ tanh(x·w) through the framework's recomputation call, float32, with gradients for x (n, m) and w (m, k).

        "plain" does not recompute. "positional" to "keyword" say how x and w are passed. "no-grad-input": x asks for no
        gradient and w is closed over. "weights-changed": w is multiplied by 3 in place between forward and backward.
        "raises": the function raises RuntimeError when it is run for the second time; the error leaves this call.
        """

    def global_state(self) -> dict[str, str]:
        """Process-wide settings that a run may leak: default formats, policies, gradient mode, scopes, threads."""

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        """Restores what `global_state` returned."""
