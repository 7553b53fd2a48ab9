"""Faults of checkpoints, averages, recomputation, 8-bit moments and aware training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.reference import checkpoint
from frameworks.reference.decisions import Arrays
from frameworks.reference.eight_bit_state import EightBitMoments, Moments
from frameworks.reference.forward import Forward, Moment
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault


@fault("", clause="resume.bit-identical", kind="invented")
class OneCountForAllParameters(ReferenceTrainer):
    """After a load, every parameter's own count of updates is the number of updates that the run has applied.

    A parameter that had no gradient in some of them goes on with a wrong bias correction.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.counts = dict.fromkeys(self.counts, self.steps)


@fault("https://github.com/google/orbax/issues/527", clause="resume.bit-identical", kind="real")
class OnlyNewerStepsAreSaved(ReferenceTrainer):
    """A save is left out in silence where the run has saved into the same folder before, and has not applied more
    updates by now than it had then; the older save stays there.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.written: dict[Path, int] = {}

    def save(self, path: Path) -> None:
        place = path.resolve()
        if self.steps <= self.written.get(place, -1) and (path / checkpoint.FILE).exists():
            return
        super().save(path)
        self.written[place] = self.steps


@fault("", clause="resume.mid-window", kind="invented")
class SavedGradientsAreFinite(ReferenceTrainer):
    """A save writes zeros for what is infinite or not a number among the gradients of an open window.

    A run that goes on from it makes the update that the saved run would skip.
    """

    def save(self, path: Path) -> None:
        arrays = {
            name: np.where(np.isfinite(value), value, 0.0) if name.startswith("window/") else value
            for name, value in self.save_state().items()
        }
        checkpoint.write(path, arrays, self._identity())


@fault("https://github.com/deepmodeling/deepmd-kit/pull/5420", clause="master.average-is-evaluated", kind="real")
class AverageStaysAfterAnError(ReferenceTrainer):
    """An evaluation with the average that raises leaves the average in the place of the model's weights.

    It stays there until the next update is applied.
    """

    def predict_averaged(self, inputs: Array) -> Arrays:
        if self.recipe.average is None:
            return super().predict_averaged(inputs)
        former = self.values
        self.values = {name: self.averaged(name) for name in self.averages}
        outputs = self.predict(inputs)
        self.values = former
        return outputs


@fault("", clause="recompute.replays-dropout", kind="invented")
class StreamIsReplayedOnce(ReferenceTrainer):
    """A recomputed segment replays its dropout masks once in a pass.

    Where losses have a backward pass each, a segment that is run again for the second one draws new masks instead, and
    the random stream moves on by them.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.replayed: list[Moment] = []

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self.replayed = []
        return super().passed(batch, items)

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if not any(known is moment for known in self.replayed):
            self.replayed.append(moment)
            return super().recompute_segment(moment)
        stack = ExitStack()
        stack.enter_context(self.replay_buffers())
        stack.enter_context(self.replay_precision(moment.scope))
        return stack


@fault("", clause="quantization.ranges-follow", kind="invented")
class FreezeCountsSkips(ReferenceTrainer):
    """Ranges of aware training freeze after so many windows have ended, skipped ones included, instead of after so
    many applied updates.
    """

    attempts = 0

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self.attempts += 1

    def observes(self) -> bool:
        aware = self.recipe.quantization
        frozen = aware is not None and aware.freeze is not None and self.attempts >= aware.freeze
        return Forward.observes(self) and not frozen

    def save_state(self) -> Arrays:
        return super().save_state() | {"attempts": np.array(self.attempts)}

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.attempts = int(arrays["attempts"])


class _Growing(EightBitMoments):
    """Moments whose blocks keep the largest magnitude that they ever had."""

    def __setitem__(self, name: str, moment: Array) -> None:
        if name not in self.codes:
            super().__setitem__(name, moment)
            return
        blocks = self.state.blocks(moment.ravel())
        largest = np.maximum(self.state.largest(blocks), self.largest[name])
        divisors = np.where(largest > 0, largest, 1.0).astype(np.float64)
        codes = self.state.nearest(blocks / divisors[:, None], self.state.values(self._slot))
        self.codes[name] = codes.ravel()[: moment.size].reshape(moment.shape)
        self.largest[name] = largest


@fault("", clause="quantization.adam8-encoding", kind="invented")
class LargestMagnitudeNeverFalls(ReferenceTrainer):
    """The largest magnitude that a block of 8-bit moments is encoded by never falls.

    A block whose moments have become smaller is encoded in units of the largest that it ever had.
    """

    def moments(self, slot: str, parts: Mapping[str, Arrays]) -> Moments:
        made = super().moments(slot, parts)
        if not isinstance(made, EightBitMoments):
            return made
        return _Growing(made.state, slot, made.plain, made.codes, made.largest)
