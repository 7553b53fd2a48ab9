"""Faults of checkpoints, and of what a look at a run, an error or another run changes in it."""

from __future__ import annotations

import hashlib
import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract import LayerTrace, Update
from frameworks.reference import checkpoint
from frameworks.reference.forward import Moment
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

Arrays = dict[str, Array]


def _weights_of(path: Path) -> Arrays:
    """The model's weights in a whole checkpoint of any run; none where there is no such file."""
    try:
        content = (path / checkpoint.FILE).read_bytes()
    except OSError:
        return {}
    if hashlib.sha256(content[64:]).hexdigest().encode() != content[:64]:
        return {}
    with np.load(io.BytesIO(content[128:])) as saved:
        return {name[6:]: saved[name] for name in saved.files if name.startswith("value/")}


@fault("https://github.com/NVIDIA/physicsnemo/pull/2010", clause="resume.truncated-file", kind="real")
class WeightsBeforeTheRest(ReferenceTrainer):
    """A restore puts the weights in place first and then refuses a checkpoint whose rest does not fit this run."""

    def restore(self, path: Path) -> None:
        found = _weights_of(path)
        if {n: a.shape for n, a in found.items()} == {n: a.shape for n, a in self.values.items()}:
            self.values = found
        super().restore(path)


@fault("https://github.com/vllm-project/speculators/pull/899", clause="master.counts-every-update", kind="real")
class CountsSavedInBfloat16(ReferenceTrainer):
    """A checkpoint holds the counts that Adam's bias correction reads in bfloat16: beyond 256 they are rounded."""

    def save_state(self) -> Arrays:
        arrays = super().save_state()
        return arrays | {"counts": arrays["counts"].astype(ml_dtypes.bfloat16).astype(np.int64)}


@fault("https://github.com/pytorch/pytorch/issues/133415", clause="resume.save-has-no-side-effects", kind="real")
class SaveMakesAnEmptyStep(ReferenceTrainer):
    """To have an optimizer state to write, a save makes a step with zero gradients wherever the state is empty: with
    plain gradient descent always, which costs an open window its gradients."""

    def save(self, path: Path) -> None:
        super().save(path)
        if not self.slots:
            self.window.gradients = {name: np.zeros_like(g) for name, g in self.window.gradients.items()}


@fault("https://github.com/NVIDIA/nvidia-resiliency-ext/pull/376", clause="resume.bit-identical", kind="real")
class StepCountsWrittenLater(ReferenceTrainer):
    """A save writes the step counts in the background: they are those of the update that comes after the save."""

    pending: tuple[Path, Arrays] | None = None

    def save(self, path: Path) -> None:
        super().save(path)
        self.pending = path, self.save_state()

    def apply(self) -> Update:
        update = super().apply()
        if self.pending is not None:
            (path, arrays), self.pending = self.pending, None
            if (path / checkpoint.FILE).is_file():
                counts = np.array(list(self.counts.values()))
                checkpoint.write(path, arrays | {"counts": counts}, self._identity())
        return update


@fault("https://github.com/google/flax/pull/1120", clause="resume.bit-identical", kind="real")
class NewerCheckpointStays(ReferenceTrainer):
    """A save into a folder that holds a checkpoint of more updates writes nothing and says nothing."""

    def save(self, path: Path) -> None:
        try:
            there = checkpoint.read(path, self._identity(), self.save_state())
        except ValueError:
            there = None
        if there is None or int(there["counters"][0]) <= self.steps:
            super().save(path)


@fault("", clause="resume.restored-is-complete", kind="invented")
class ZeroMomentsAreLeftOut(ReferenceTrainer):
    """A restore passes over moments that are all zero, as for a new run: one that has trained keeps its own."""

    def load_state(self, arrays: Arrays) -> None:
        own = super().save_state()
        kept = {n: own[n] for n, a in arrays.items() if n.startswith("slot.") and not a.any() and n in own}
        super().load_state(arrays | kept)


@fault("", clause="scaling.reports-true-loss", kind="invented")
class GradientsJoinTheLoss(ReferenceTrainer):
    """Gradients that are asked for inside a window leave their losses in it, and its reported loss takes them in."""

    heard: list[tuple[float, int]] | None = None

    def accumulate(self, batch: Batch, items: int) -> float:
        loss = super().accumulate(batch, items)
        if self.heard is not None and batch.items:
            self.heard.append((loss * batch.items, batch.items))
        return loss

    def gradients(self, window: Window) -> Arrays:
        self.heard = heard = []
        try:
            gradients = super().gradients(window)
        finally:
            self.heard = None
        if self.window.micro_batches:
            self.window.losses += heard
        return gradients


@fault("", clause="composition.trace-is-the-pass", kind="invented")
class TraceGivesTheMaskBack(ReferenceTrainer):
    """A traced pass sets the random stream back: the next training pass drops what the traced one dropped."""

    def trace(self, batch: Batch) -> LayerTrace:
        draws = self.draws
        shown = super().trace(batch)
        self.draws = draws
        return shown


@fault("", clause="accumulation.each-counts-once", kind="invented")
class ErrorEmptiesTheWindow(ReferenceTrainer):
    """A micro-batch that raises takes those before it out of the window with it."""

    def accumulate(self, batch: Batch, items: int) -> float:
        try:
            return super().accumulate(batch, items)
        except Exception:
            self.empty_accumulator()
            raise


@fault("", clause="recompute.replays-dropout", kind="invented")
class ReplayedOnlyOnce(ReferenceTrainer):
    """The random state that a segment kept is used up by its first replay: the backward pass of a second loss, which
    runs the segment once more, draws new masks."""

    used: tuple[Moment, ...] = ()

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[Any]:
        if any(moment is other for other in self.used):
            moment = Moment(self.draws, moment.scope)
        self.used = (*self.used[-63:], moment)
        return super().recompute_segment(moment)
