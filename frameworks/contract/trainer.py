"""`Trainer`: one training run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol, TypeVar

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract.quantization import QuantizedModel
from frameworks.contract.values import Gradients, LayerTrace, LoadOrder, Update

V = TypeVar("V")


class Trainer(Protocol):
    """One training run. Its initial parameters are the given weights, bit for bit."""

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

    def apply_gradients(
        self,
        *window: Gradients,
        unscale_calls: int | None = None,
        inject: Gradients | None = None,
        discard: bool = False,
    ) -> Update:
        """One update attempt from given unscaled gradients instead of a backward pass of the model.

        Each mapping is the gradient of one micro-batch's mean loss over equally many items; their mean is the window's
        gradient. The adapter back-propagates the scaled Σ p·g through its normal path, so that scaling, detection and
        skipping are the framework's own.

        Args:
            unscale_calls: number of manual unscale calls before the step; None leaves it to the framework.
            inject: values to add to the gradients after one manual unscale.
            discard: unscale manually once, leave out the step, and end the update as the documentation says.
        Raises:
            Unsupported: EXPLICIT_UNSCALE, if the framework has no public call that unscales.
        """

    def parameters(self) -> dict[str, Array]:
        """The model's parameters by canonical name in canonical shape, in their true formats."""

    def master_parameters(self) -> dict[str, Array]:
        """The weights that the optimizer updates: float32 masters where the level has them, else the parameters."""

    def optimizer_state(self) -> dict[str, Array]:
        """Moments as "SLOT/PARAMETER" in their true formats, and every counter: "steps", "schedule".

        The average of the weights is "average/PARAMETER". Statistics of other shapes than the parameter's, such as
        Adafactor's of rows and columns, are shown as the framework lays them out, or left out where it does not name
        their parameter, as in Keras.

        An 8-bit moment appears decoded, as "SLOT/PARAMETER" in float32, and encoded: "codes/SLOT/PARAMETER", uint8 in
        canonical shape, and "absmax/SLOT/PARAMETER", float32, one for each block in the order in which the framework
        lays the parameter out.
        """

    def buffers(self) -> dict[str, Array]:
        """Batch norm's running statistics by canonical name; in QAT also the observers' state, by any name; in float8
        training also the amax history.
        """

    def view(self, kind: type[V]) -> V:
        """The state of a technique, by a class marked by `register_rule`, such as `CalibratedRanges`.

        Raises:
            Unsupported: the capability.
        """

    def convert(self) -> QuantizedModel:
        """The model converted to integer codes with the present ranges; the run does not change.

        Raises:
            Unsupported: CONVERT, or QAT if the recipe does not use it.
        """

    def scaler_state(self) -> dict[str, Array]:
        """State of the scaler: "scale" and "good_steps", 0-d in their true formats, and flags; empty without one."""

    def scaler_settings(self) -> dict[str, float]:
        """ "initial", "growth", "backoff" and "interval" as read back from the framework's scaler before any update."""

    def accumulator(self) -> dict[str, Array]:
        """The accumulator, by canonical name; empty at a window's start."""

    def random_state(self) -> dict[str, Array]:
        """State of every random stream that the run draws from."""

    def state(self) -> dict[str, Array]:
        """All of the above in one mapping with prefixes "parameter/", "master/", "optimizer/", "buffer/", ..."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        """Evaluation-mode forward under the recipe's precision: output by head name, in its true format."""

    def predict_averaged(self, inputs: Array) -> dict[str, Array]:
        """`predict` with the average in the weights' place, by the framework's own way of evaluating with it."""

    def hook_calls(self) -> int:
        """Number of calls of the framework's hook after an update, in all optimizers.

        Raises:
            Unsupported: STEP_HOOKS.
        """

    def segment_calls(self) -> tuple[int, ...]:
        """Number of forward runs of each recomputation segment so far; without recomputation there is one segment."""

    def save(self, path: Path) -> None:
        """Writes the whole run to the folder `path`, including a partial window and the random state."""

    def restore(self, path: Path) -> None:
        """Restores a save; raises ValueError, without a change of the run, if the files are incomplete."""

    def restore_in(self, path: Path, order: LoadOrder) -> None:
        """As `restore`, for a new run whose parts are made and loaded in this order.

        Raises:
            ValueError: the files are incomplete, as in `restore`.
            Unsupported: LOAD_ORDER.
        """

    def freeze(self, names: Collection[str]) -> None:
        """Freezes, from now on, these parameters and those in the recipe's `frozen`; all others are trained.

        Raises:
            Unsupported: FREEZE.
        """

    def take(self, other: Trainer) -> None:
        """Copies the present state of another run of the same model and recipe, part by part, without a file.

        Raises:
            Unsupported: LIVE_STATE.
        """

    def saved_bytes(self, batch: Batch) -> int:
        """Bytes saved between forward and backward of one micro-batch, without parameters and inputs."""

    def offloaded_bytes(self) -> dict[str, int]:
        """Offloaded bytes by kind, as the framework reports them.

        "activations": bytes offloaded in forward passes since the last call. "parameters" and "optimizer": bytes
        currently offloaded; parameters include masters, the optimizer's state excludes counters.

        Raises:
            Unsupported: the run offloads nothing, or the framework does not report it.
        """

    def trace(self, batch: Batch) -> LayerTrace:
        """Outputs and gradients of each layer in forward and backward of a window with this micro-batch alone.

        No update is made. The pass is that of `gradients`, with additions that read intermediate values. It is real:
        random streams and batch norm's buffers move.

        Raises:
            Unsupported: TRACE, if the framework does not show the values, such as those in recomputed segments.
        """

    def peak_bytes(self) -> int:
        """Largest number of bytes that the device's allocator has held so far in this run.

        If the allocator cannot reset its peak, this is the peak of the process, and each run needs its own process.
        """
