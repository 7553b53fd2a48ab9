"""The contract between the suite and a framework: NumPy in, NumPy out, no framework object crosses it.

A `Framework` is bound to one device and one mode when it is made. It answers what it declares, what it was seen to do
(`probe`), and makes `Trainer`s, each of which is one training run. What a framework cannot do raises `Unsupported` with
the capability's name; that is recorded and never counts as a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Precision, Recipe

Gradients = Mapping[str, Array | None]
"""Gradient by canonical parameter name; a name that is missing or None has no gradient."""

State = Mapping[str, Array]
"""Named arrays; everything that tells one moment of a run from another."""


class Capability(StrEnum):
    """What a framework may declare that it does or does not do on a device, in a mode."""

    O1_FLOAT16 = "precision.O1-float16"
    O1_BFLOAT16 = "precision.O1-bfloat16"
    O2_FLOAT16 = "precision.O2-float16"
    O2_BFLOAT16 = "precision.O2-bfloat16"
    O3_FLOAT16 = "precision.O3-float16"
    O3_BFLOAT16 = "precision.O3-bfloat16"
    FLOAT64_HEADS = "precision.float64-heads"
    TF32 = "precision.tf32"  # a switch that products of float32 matrices heed
    AUTOCAST_SCOPE = "autocast.scope"
    AUTOCAST_LISTS = "autocast.user-lists"
    OPERATIONS = "autocast.operations"  # every operation of the catalogue in every format
    DYNAMIC_SCALING = "scaling.dynamic"
    STATIC_SCALING = "scaling.static"
    SCALING_FACTORS = "scaling.factors"
    SCALING_DISABLED = "scaling.disabled"
    EXPLICIT_UNSCALE = "scaling.explicit-unscale"
    SECOND_UNSCALE = "scaling.second-unscale"  # that the gradients of an update were unscaled before can be seen
    TWO_OPTIMIZERS = "scaling.two-optimizers"
    TWO_LOSSES = "scaling.two-losses"
    ACCUMULATION = "accumulation"
    PARTIAL_WINDOW = "accumulation.partial-window"
    RECOMPUTE = "recompute"
    RECOMPUTE_NESTED = "recompute.nested"
    RECOMPUTE_CASES = "recompute.cases"
    SEGMENT_CALLS = "recompute.segment-calls"
    GROUPS = "optimizer.groups"
    CLIP = "optimizer.clip"
    SCHEDULE = "optimizer.schedule"
    MISSING_GRADIENTS = "optimizer.missing-gradients"
    AVERAGE = "optimizer.average"
    FEED = "trainer.feed"
    CHECKPOINT = "trainer.checkpoint"
    SAVED_BYTES = "trainer.saved-bytes"
    PEAK_BYTES = "trainer.peak-bytes"
    TRACE = "trainer.trace"  # outputs and gradients of every layer

    @classmethod
    def of(cls, precision: Precision) -> Capability | None:
        """The capability that a precision asks for, None for float32."""
        return None if precision.level == "O0" else cls(f"precision.{precision.label}")


Attempt = Callable[[], bool]
"""A try of the framework's own call without an adapter's guards: True if the technique was seen to act."""


class Unsupported(Exception):  # noqa: N818 - an outcome, not an error
    """The framework cannot do this here; `capability` says what, `reason` why, in one sentence.

    A refusal of a combination, whose capability is declared as supported, brings an `attempt` of its own.
    """

    def __init__(self, capability: Capability, reason: str, attempt: Attempt | None = None) -> None:
        super().__init__(f"{capability}: {reason}")
        self.capability = capability
        self.reason = reason
        self.attempt = attempt


class MissingDevice(Exception):  # noqa: N818 - shown to the user as one line
    """The device that was asked for is not there."""


@dataclass(frozen=True)
class Declaration:
    """Whether a framework says that it supports a capability, and why not."""

    supported: bool
    reason: str = ""


SUPPORTED = Declaration(True)


@dataclass(frozen=True)
class ScalerRule:
    """A dynamic loss scaler as the framework documents it.

    Attributes:
        initial, growth, backoff, interval: default settings.
        minimum: the documented floor of the scale, 0 for none.
        maximum: the largest value that growth is documented to reach, inf for none.
        counts: what the growth counter counts, applied updates or micro-batches.
        nonfinite: whether overflow is looked for in scaled or in unscaled gradients.
        latched: True if the check is made when gradients are unscaled, False if when they are applied.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    minimum: float = 0.0
    maximum: float = float("inf")
    counts: Literal["updates", "micro-batches"] = "updates"
    nonfinite: Literal["scaled", "unscaled"] = "unscaled"
    latched: bool = True


@dataclass(frozen=True)
class Conventions:
    """Legitimate differences that a framework declares; the reference follows them, so that parity can be tight.

    Attributes:
        adam_epsilon: "outside": m̂ / (√v̂ + ε); "inside": α·√(1-β2ᵗ)/(1-β1ᵗ) · m / (√v + ε), Kingma & Ba's epsilon-hat.
        adam_correction: the format that 1 − βᵗ is computed in; float32 costs half of its digits in the first updates.
        momentum_rate: "outside": v ← μv + g, p ← p − αv; "inside": v ← μv − αg, p ← p + v.
        running_variance: which variance batch norm's running statistics take in.
        clip_epsilon: added to the global norm when the clip coefficient is computed.
        nonfinite_micro_batch: what one non-finite micro-batch costs.
        remainder: what happens to an incomplete window at the end of an epoch.
        partial_overflow: under one scaler and two optimizers, whose update an overflow skips.
        accumulates: whether a window sums scaled gradients, so that the scale has to stay, or unscaled ones.
        compiled: whether a compiler may fuse operations and keep more precision than was asked for, so that two
            programs of one computation agree within rounding and not bit for bit.
        gradient_input: recomputation variants whose documentation asks that some input of a segment needs a gradient.
        keeps_products: recomputation variants that keep matrix products by definition.
    """

    adam_epsilon: Literal["outside", "inside"] = "outside"
    adam_correction: Literal["float64", "float32"] = "float64"
    momentum_rate: Literal["outside", "inside"] = "outside"
    running_variance: Literal["unbiased", "biased"] = "biased"
    clip_epsilon: float = 0.0
    nonfinite_micro_batch: Literal["drop-window", "drop-micro-batch"] = "drop-window"
    remainder: Literal["flush", "carry", "drop"] = "flush"
    partial_overflow: Literal["skip-overflowing", "skip-all"] = "skip-overflowing"
    accumulates: Literal["scaled", "unscaled"] = "scaled"
    compiled: bool = False
    gradient_input: tuple[str, ...] = ()
    keeps_products: tuple[str, ...] = ()
    scaler: ScalerRule = field(default_factory=ScalerRule)


@dataclass(frozen=True)
class Update:
    """What one call of `Trainer.update`, `apply` or `feed` did.

    Attributes:
        loss: unscaled loss of the window, normalised by its items; NaN after `feed`.
        micro_losses: unscaled mean loss of each micro-batch; NaN, or what the framework says, of one without items.
        scale_before, scale_after: the loss scale, 1.0 where there is none.
        good_steps: the growth counter after the update, None where the framework has none to read.
        skipped: the framework's own word, or what its public state shows: nothing was applied.
        gradient_norm: global 2-norm of the unscaled gradients before clipping, None where it was not computed.
        learning_rate: the rate that the update used, or would have used.
    """

    loss: float
    micro_losses: tuple[float, ...]
    scale_before: float
    scale_after: float
    good_steps: int | None
    skipped: bool
    gradient_norm: float | None
    learning_rate: float


@dataclass(frozen=True)
class LayerTrace:
    """What one training forward and backward pass computed, layer by layer, in the order of the forward pass.

    Arrays are canonical (batch first, channels last) and in their true formats. A layer's key is its path, as
    `Model.output_shapes` lists them: inner layers come before the residual that holds them, heads last.

    Attributes:
        outputs: output of every layer; a head that the batch has no targets for is left out.
        gradients: gradient of the loss with respect to each of these outputs, unscaled; where a scale other than 1 is
            divided out, in float32 or wider, so that nothing underflows.
        parameters: gradient of every parameter, unscaled and unclipped, as `Trainer.gradients` gives it.
    """

    outputs: dict[str, Array]
    gradients: dict[str, Array]
    parameters: dict[str, Array]


@dataclass(frozen=True)
class OpResult:
    """Value of an operation and the name of the format that it came in ("float16", "int64", ...)."""

    value: Array
    dtype: str


RecomputeCase = Literal[
    "positional", "tuple", "list", "dict", "keyword", "no-grad-input", "weights-changed", "raises", "plain"
]


@dataclass(frozen=True)
class RecomputeResult:
    """Value of the probe function and its gradients; a gradient that the framework did not give is None."""

    value: float
    x: Array | None
    w: Array | None


class Trainer(Protocol):
    """One training run. The parameters start as the weights that it was made with, bit for bit."""

    def update(self, window: Window) -> Update:
        """One optimizer update from a window of micro-batches: `accumulate` each, then `apply`."""

    def accumulate(self, batch: Batch, items: int) -> float:
        """Forward and backward of one micro-batch of a window that holds `items` items; returns its unscaled mean loss.

        Nothing but the accumulator, random streams and batch norm's buffers changes, unless the framework itself ends
        the window with its k-th micro-batch; then `apply` only reports.
        """

    def apply(self) -> Update:
        """Ends the window: unscale, check, clip, update or skip, adjust the scale, empty the accumulator.

        Raises:
            Unsupported: PARTIAL_WINDOW, if the framework cannot end a window early.
        """

    def gradients(self, window: Window) -> dict[str, Array]:
        """Unscaled, unclipped gradients of a window in their true formats, by canonical name; no update is made.

        The forward passes are real: random streams and batch norm's buffers move. A parameter that got no gradient is
        left out.
        """

    def feed(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        poison: Gradients | None = None,
        abandon: bool = False,
    ) -> Update:
        """One update attempt from given unscaled gradients instead of a backward pass of the model.

        Each mapping is the gradient of one micro-batch's mean loss over equally many items; their mean is the window's
        gradient. The adapter back-propagates the scaled Σ p·g through its normal path, so that scaling, detection and
        skipping are the framework's own.

        Args:
            unscale_calls: how often the caller unscales by hand before the step; None leaves it to the framework.
            poison: after unscaling by hand once, add these to the gradients.
            abandon: unscale by hand once and leave the step out, ending the update as the documentation says.
        Raises:
            Unsupported: EXPLICIT_UNSCALE, where there is no call to unscale by hand.
        """

    def parameters(self) -> dict[str, Array]:
        """The model's parameters by canonical name in canonical shape, in their true formats."""

    def master_parameters(self) -> dict[str, Array]:
        """The weights that the optimizer updates: float32 masters where the level has them, else the parameters."""

    def optimizer_state(self) -> dict[str, Array]:
        """Moments as "SLOT/PARAMETER" in their true formats, and every counter: "steps", "schedule".

        The average of the weights is "average/PARAMETER".
        """

    def buffers(self) -> dict[str, Array]:
        """Batch norm's running statistics by canonical name."""

    def scaler_state(self) -> dict[str, Array]:
        """Scaler: "scale" and "good_steps" as 0-d arrays in their true formats, other flags; empty without one."""

    def scaler_settings(self) -> dict[str, float]:
        """ "initial", "growth", "backoff" and "interval" as read back from the framework's scaler before any update."""

    def accumulator(self) -> dict[str, Array]:
        """What the accumulator holds, by canonical name; empty at a window's start."""

    def random_state(self) -> dict[str, Array]:
        """State of every random stream that the run draws from."""

    def state(self) -> dict[str, Array]:
        """All of the above in one mapping with prefixes "parameter/", "master/", "optimizer/", "buffer/", ..."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        """Evaluation-mode forward under the recipe's precision: output by head name, in its true format."""

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """`predict` with the average in the weights' place, by the framework's own way of evaluating with it."""

    def segment_calls(self) -> tuple[int, ...]:
        """How often the forward of each recomputation segment has begun so far; one segment without recomputation."""

    def save(self, path: Path) -> None:
        """Writes the whole run below the folder `path`, a partial window and the random state included."""

    def restore(self, path: Path) -> None:
        """Goes back to what `save` wrote; raises ValueError, changing nothing, if the files are not whole."""

    def saved_bytes(self, batch: Batch) -> int:
        """Bytes held between forward and backward of one micro-batch, parameters and inputs left out."""

    def trace(self, batch: Batch) -> LayerTrace:
        """What forward and backward compute, layer by layer, in an update whose window is this micro-batch alone.

        No update is made. The pass is real, and the very one that `gradients` makes, but for what has to be added to
        see inside: random streams and batch norm's buffers move.

        Raises:
            Unsupported: TRACE, where the framework does not show it, as within recomputed segments.
        """

    def peak_bytes(self) -> int:
        """Largest number of bytes that the device's allocator has held so far in this run.

        Where the allocator cannot be told to begin anew it is the process's peak: a process for each run tells them
        apart.
        """


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
        """Supported here, or why not."""

    def probe(self, capability: Capability) -> bool | None:
        """Runs the framework's own call without this adapter's guards: did it take effect? None: nothing to observe.

        True: the technique was seen to act; False: it raised, warned or silently did nothing.
        """

    def conventions(self) -> Conventions:
        """The conventions that hold here, as the framework documents them."""

    def recompute_variants(self) -> tuple[str, ...]:
        """Names of the recomputation variants that the framework offers, its default first; empty without any.

        Any other name is refused with ValueError, by `trainer` and by `recompute`.
        """

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
        """A new run; `weights` are the canonical ones to start from, None for `model.weights(recipe.seed)`.

        Raises:
            Unsupported: the recipe asks for what the framework does not do here.
        """

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """The framework's own precision scope; `wide` and `low` name operations of `run_op` for its user lists."""

    def tf32(self, allowed: bool) -> AbstractContextManager[None]:
        """A scope in which products of float32 matrices may, or may not, round their operands to TensorFloat-32.

        Raises:
            Unsupported: TF32, where nothing switches it within a process, or the device has no such products.
        """

    def timed(self, work: Callable[[], object]) -> int:
        """Runs `work` alone on the device and returns how long it took, in nanoseconds.

        The device's queue is waited for before and after. The time is that between two events of the device where the
        framework has them, the host's elsewhere; on a CPU it is the time that this process kept processors busy, which
        waiting for one is no part of.
        """

    def run_op(self, op: str, *arrays: Array) -> OpResult:
        """Runs operation `op` (a name of `frameworks.operations`) inside whatever precision scope is open."""

    def recompute(self, case: RecomputeCase, x: Array, w: Array, variant: str | None = None) -> RecomputeResult:
        """Σ tanh(x·w) through the framework's recomputation call, float32, with gradients for x (n, m) and w (m, k).

        "plain" does not recompute. "positional" to "keyword" say how x and w are passed. "no-grad-input": x asks for no
        gradient and w is closed over. "weights-changed": w is multiplied by 3 in place between forward and backward.
        "raises": the function raises RuntimeError when it is run for the second time; the error leaves this call.
        """

    def global_state(self) -> dict[str, str]:
        """Process-wide settings that a run may leak: default formats, policies, gradient mode, scopes, threads."""

    def restore_global_state(self, state: Mapping[str, str]) -> None:
        """Puts back what `global_state` returned."""
