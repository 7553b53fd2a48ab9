"""Faults of recomputation, checkpoints, traces and what one process keeps from run to run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.contract import LayerTrace
from frameworks.reference import scope
from frameworks.reference.decisions import Arrays
from frameworks.reference.forward import Layers
from frameworks.reference.network import Pass
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

# recomputation


class _FromLowInputs(Pass):
    """A pass whose segments begin with inputs that were kept in the scope's low format."""

    def layers(self, layers: Layers, x: Tensor) -> Tensor:
        precision = scope.current().precision
        if layers and "." not in layers[0][0] and precision.level == "O1" and x.format == "float32":
            x = self.ops.cast(self.ops.cast(x, precision.format), x.format)
        return super().layers(layers, x)


@fault("", clause="recompute.replays-autocast", kind="invented")
class SegmentInputsAreKeptLow(ReferenceTrainer):
    """Under mixed precision the input of a recomputed segment is kept in the compute format, to save bytes.

    Where it was float32, as in a residual stream, the second forward pass begins with rounded values.
    """

    def _pass(self, parameters: Mapping[str, Tensor], training: bool) -> Pass:
        if not self._replaying:
            return super()._pass(parameters, training)
        return _FromLowInputs(self.ops, parameters, self, training)


@fault("", clause="recompute.random-stream-unmoved", kind="invented")
class NestedReplayLeavesTheStreamBack(ReferenceTrainer):
    """With recomputation inside recomputation, a replay sets the random stream back and leaves it there.

    The next step draws masks again that were drawn before.
    """

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        nested = self.recipe.recompute is not None and self.recipe.recompute.depth > 1
        later, self.draws = self.draws, draws
        try:
            yield
        finally:
            if not nested:
                self.draws = later


# checkpoints


@fault("https://github.com/THUDM/slime/pull/1547", clause="resume.load-has-no-side-effects", kind="real")
class LoadCountsTheScheduleTwice(ReferenceTrainer):
    """A load restores the schedule's position and then moves the schedule on by that many steps again.

    A resumed run goes on at twice the position of its schedule.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.recipe.schedule is not None:
            self.schedule *= 2


@fault("", clause="laws.restores", kind="invented")
class OpenWindowSurvivesALoad(ReferenceTrainer):
    """A load of a save that was made between two windows leaves the open window of the run as it is.

    Gradients that were accumulated before the load are part of the first update after it.
    """

    def load_state(self, arrays: Arrays) -> None:
        opened = self.window
        super().load_state(arrays)
        if opened.micro_batches and not self.window.micro_batches:
            self.window = opened


# traces


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceEndsTheWindow(ReferenceTrainer):
    """To show a pass of the layers drops what an open window has accumulated.

    A run that is looked at between two micro-batches loses those before.
    """

    def trace(self, batch: Batch) -> LayerTrace:
        shown = super().trace(batch)
        self.empty_accumulator()
        return shown


# what a process keeps

_MASKS: dict[tuple[int, int, tuple[int, ...]], Array] = {}
_KEPT = 256


@fault("", clause="laws.second-run", kind="invented")
class MasksAreCachedWithoutTheirRate(ReferenceTrainer):
    """Dropout masks are kept in the process by seed, place in the stream and shape, and not by rate.

    A second run with the same seed and another rate drops by the masks of the first one.
    """

    def draw_mask(self, shape: tuple[int, ...], rate: float) -> Array:
        key = (self.recipe.seed, self.draws, shape)
        if key in _MASKS:
            self.draws += 1
            return _MASKS[key]
        mask = super().draw_mask(shape, rate)
        if len(_MASKS) >= _KEPT:
            _MASKS.pop(next(iter(_MASKS)))
        _MASKS[key] = mask
        return mask
