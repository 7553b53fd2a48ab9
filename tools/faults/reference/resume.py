"""Faults of checkpoints: missing content, missing refusals, and side effects."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.recipe import SGD, Adam, Precision
from frameworks.base import of_same_class
from frameworks.contract import Gate, LiveValues, Trainer
from frameworks.reference.core import checkpoint, scope
from frameworks.reference.core.tape import Tensor
from frameworks.reference.training.background import ReferenceSeries
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/vision/pull/4923", "resume.scaler-state")
class GrowthCounterIsNotSaved(ReferenceTrainer):
    """A save holds the scale without the counter of good updates."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        if self.scaler is not None:
            self.scaler = self.scaler.at(self.scaler.scale, 0)


@fault("https://github.com/NVlabs/stylegan2-ada-pytorch/issues/108", "resume.bit-identical")
class SecondOptimizerIsNotLoaded(ReferenceTrainer):
    """A load restores only the moments of the first optimizer."""

    def load_state(self, arrays: Arrays) -> None:
        former = {slot: dict(values) for slot, values in self.slots.items()}
        super().load_state(arrays)
        for slot, values in self.slots.items():
            values.update({name: former[slot][name] for name in values if self.optimizer_of(name)})


@fault("https://github.com/EleutherAI/gpt-neox/pull/308", "resume.bit-identical")
class PositionIgnoresAccumulation(ReferenceTrainer):
    """A load divides the counter of updates by the micro-batches of a window."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.steps //= self.recipe.accumulation


@fault("https://github.com/AI-Hypercomputer/maxtext/issues/276", "resume.random-state")
class RandomStateFollowsUpdates(ReferenceTrainer):
    """A load sets the random stream to the number of updates instead of the number of draws."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.draws = self.steps


@fault("https://github.com/unit8co/darts/issues/2463", "resume.bit-identical")
class PartOfTheRunStaysInTheProcess(ReferenceTrainer):
    """The counters of a checkpoint are kept in the process that saved it, not in the file."""

    counters: ClassVar[dict[str, Array]] = {}

    def save(self, path: Path) -> None:
        super().save(path)
        self.counters[str(path)] = self.save_state()["counters"]

    def restore(self, path: Path) -> None:
        arrays = checkpoint.read(path, self._identity(), self.save_state())
        self.load_state(arrays | {"counters": self.counters.get(str(path), np.zeros(6, np.int64))})


@fault("https://github.com/google/flax/pull/1120", "resume.bit-identical")
class OlderSaveStays(ReferenceTrainer):
    """A save into a folder that has a save of the same run writes nothing and does not raise."""

    def save(self, path: Path) -> None:
        try:
            checkpoint.read(path, self._identity(), self.save_state())
        except ValueError:
            super().save(path)


@fault("https://github.com/pytorch/pytorch/issues/140898", "resume.bit-identical")
class OpenWindowKeepsTheMoments(ReferenceTrainer):
    """A load into a run with accumulated gradients does not restore the optimizer's state."""

    def load_state(self, arrays: Arrays) -> None:
        former, open_window = {slot: dict(moments) for slot, moments in self.slots.items()}, bool(self.window.gradients)
        super().load_state(arrays)
        for slot, moments in former.items() if open_window else ():
            self.slots[slot].update(moments)


@fault("https://github.com/Nerogar/OneTrainer/pull/1465", "resume.mid-window")
class LossOfTheOpenWindowIsLost(ReferenceTrainer):
    """A load restores the gradients of the open window without its losses, so the reported loss lacks them."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.losses = []


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "resume.mid-window")
class OpenWindowCannotBeUnscaled(ReferenceTrainer):
    """Gradients of an open window that was loaded are applied without unscaling."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.window.unscaled = bool(self.window.gradients)


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.unclaimed-is-refused")
class DropsWhatHasNoReceiver(ReferenceTrainer):
    """A load ignores saved arrays that the run does not have, and keeps the run's arrays that the save lacks."""

    def restore(self, path: Path) -> None:
        present = self.save_state()
        saved = checkpoint.read(path, "", {})
        self.load_state({n: saved[n] if n in saved and saved[n].shape == v.shape else v for n, v in present.items()})

    def _identity(self) -> str:
        return ""


@fault("https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1647", "resume.other-format-is-refused")
class FormatsAreNotRecorded(ReferenceTrainer):
    """A checkpoint does not record its formats."""

    def _identity(self) -> str:
        return f"{self.model.name} {self.model.layers} {self.model.sample} {self.recipe.replace(precision=Precision())}"


@fault("https://github.com/ScrollPrize/villa/pull/1475", "resume.truncated-file", "resume.altered-file")
class DamageIsIgnored(ReferenceTrainer):
    """An unreadable file counts as a missing one, and the run continues with its present state."""

    def restore(self, path: Path) -> None:
        with suppress(ValueError):
            super().restore(path)


@fault("https://github.com/ScrollPrize/villa/pull/1475", "resume.truncated-file", "resume.refusal-changes-nothing")
class RefusalComesTooLate(ReferenceTrainer):
    """A load resets the optimizer before it reads the file."""

    def restore(self, path: Path) -> None:
        self.counts = dict.fromkeys(self.counts, 0)
        super().restore(path)


@fault("https://github.com/huggingface/accelerate/issues/4289", "resume.load-has-no-side-effects")
class LoadLeavesItsPrecisionScopeOpen(ReferenceTrainer):
    """A load leaves the precision scope of its warm-up forward pass open."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        scope.enter(scope.Scope(Precision("O1", "bfloat16")))


@fault("https://github.com/pytorch/pytorch/issues/164929", "resume.save-has-no-side-effects", "resume.bit-identical")
class SaveMakesTheFirstStep(ReferenceTrainer):
    """A save before the first update makes a step with zero gradients and rate 0, which increments the counters."""

    def save(self, path: Path) -> None:
        if not any(self.counts.values()):
            self.apply_update({name: np.zeros_like(value) for name, value in self.masters.items()}, 0.0)
        super().save(path)


@fault("https://github.com/the-database/traiNNer-redux/pull/96", "resume.save-has-no-side-effects")
class SaveDropsTheOpenWindow(ReferenceTrainer):
    """A save clears the accumulator of the run."""

    def save(self, path: Path) -> None:
        super().save(path)
        self.window.gradients.clear()


@fault("https://github.com/facebookresearch/fairseq2/issues/1346", "resume.restored-is-complete", raises=True)
class ScaleIsMissingUntilTheFirstLoss(ReferenceTrainer):
    """A restored scaler has no scale until it scales a loss."""

    _restored = False

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._restored = True

    def scale_loss(self, loss: Tensor) -> Tensor:
        self._restored = False
        return super().scale_loss(loss)

    def scaler_state(self) -> Arrays:
        if self._restored:
            raise AttributeError("the scaler has no scale yet")
        return super().scaler_state()


@fault("https://github.com/jax-ml/jax/issues/37830", "resume.save-has-no-side-effects")
class SharesTheGivenWeights(ReferenceTrainer):
    """A run trains the caller's initial weights in place."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.caller_weights: Mapping[str, Array] = args[-1] or {}

    def apply_update(self, gradients: Arrays, rate: float) -> None:
        super().apply_update(gradients, rate)
        for name, value in self.caller_weights.items():
            value[...] = self.masters[name]


@fault("https://github.com/pytorch/pytorch/issues/196083", "resume.live-state")
class SharesTheMomentsItTook(ReferenceTrainer):
    """Moments that are loaded from another run are shared with it."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        self.slots = of_same_class(self, other).slots


@fault("https://github.com/dotnet/TorchSharp/issues/1172", "resume.live-state")
class SharesTheWeightsItTook(ReferenceTrainer):
    """Weights that are loaded from another run are shared with it."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        source = of_same_class(self, other)
        self.masters, self.values = source.masters, source.values


@fault("", "resume.bit-identical")
class ReplayCountsDrawsFromTheLoad(ReferenceTrainer):
    """After a load, recomputation replays the random stream at the number of draws since the load."""

    drawn_before = 0

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.drawn_before = self.draws

    @contextmanager
    def replay_random(self, draws: int) -> Iterator[None]:
        with super().replay_random(draws - self.drawn_before if draws >= self.drawn_before else draws):
            yield


@fault("https://github.com/pytorch/pytorch/issues/196083", "resume.live-state")
class OpenWindowIsShared(ReferenceTrainer):
    """A run that takes the state of another run inside a window shares the accumulated gradients with it."""

    def take(self, other: Trainer) -> None:
        super().take(other)
        if isinstance(other, ReferenceTrainer):
            self.window.gradients = other.window.gradients


@fault("", "resume.unclaimed-is-refused")
class SaveOfAnotherOptimizerIsTaken(ReferenceTrainer):
    """A load does not compare optimizers, so SGD drops Adam's moments and AdamW takes those of Adam."""

    def _identity(self) -> str:
        optimizer = self.recipe.optimizer
        if isinstance(optimizer, Adam) and optimizer.state_bits == 8:
            return super()._identity()
        recipe, self.recipe = self.recipe, self.recipe.replace(optimizer=SGD())
        try:
            return super()._identity()
        finally:
            self.recipe = recipe


@fault("https://github.com/pytorch/pytorch/issues/119168", "resume.load-order")
class LateScheduleSetsItsFirstRate(ReferenceTrainer):
    """A schedule that is made after the load sets its first rate until it advances."""

    _is_new = False

    def make_schedule(self, applied: int = 0) -> None:
        super().make_schedule(applied)
        self._is_new = True

    def advance_schedule(self) -> None:
        super().advance_schedule()
        self._is_new = False

    def learning_rate(self) -> float:
        schedule = self.recipe.schedule
        if schedule is None or not self._is_new:
            return super().learning_rate()
        return self.recipe.optimizer.learning_rate * schedule.factor(0)


@fault("https://github.com/PaddlePaddle/Paddle/issues/43004", "resume.load-order", "optimizer.schedules")
class ScheduleMadeThereIsOneAhead(ReferenceTrainer):
    """A schedule that is made after some updates begins one update ahead."""

    def make_schedule(self, applied: int = 0) -> None:
        super().make_schedule(applied + 1 if applied else 0)


@fault("https://github.com/mosaicml/composer/pull/1376", "resume.load-order")
class UsedScalerKeepsItsScale(ReferenceTrainer):
    """A load does not restore a scaler that has scaled a loss."""

    _was_used = False

    def use_scaler(self) -> None:
        super().use_scaler()
        self._was_used = True

    def load_part(self, part: str, arrays: Arrays) -> None:
        if part != "scaler" or not self._was_used:
            super().load_part(part, arrays)


@fault("https://github.com/CodefyUI/CodefyUI/pull/147", "resume.load-order")
class LoadedModelGetsNewMoments(ReferenceTrainer):
    """A load of the model after the optimizer resets the optimizer's moments."""

    def load_part(self, part: str, arrays: Arrays) -> None:
        super().load_part(part, arrays)
        if part == "model":
            self.slots = {slot: {n: np.zeros_like(v) for n, v in old.items()} for slot, old in self.slots.items()}


@fault("https://github.com/pytorch/pytorch/issues/144657", "resume.async-is-a-snapshot")
class LiveValuesAreWritten(ReferenceSeries):
    """A save in the background writes the values of the moment in which the writer reaches them."""

    def write(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        gate.hold("data")
        super().write(step, self.values.read(), gate)


@fault("https://github.com/Lightning-AI/pytorch-lightning/pull/21079", "resume.async-is-a-snapshot")
class NumbersAreWrittenLate(ReferenceSeries):
    """A save in the background copies arrays in its call, and Python numbers when the writer reaches them."""

    def write(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        gate.hold("data")
        numbers = {name: array for name, array in self.values.read().items() if not array.ndim}
        super().write(step, {**arrays, **numbers}, gate)


@fault("https://github.com/pytorch/pytorch/issues/183413", "resume.async-second-save")
class SavesShareOneCopy(ReferenceSeries):
    """Each save in the background copies the values into the memory that the last one may still write."""

    def copy_values(self) -> Mapping[str, Array]:
        self.copies = getattr(self, "copies", {})
        for name, array in super().copy_values().items():
            self.copies.setdefault(name, array)[...] = array
        return self.copies


@fault("https://github.com/KempnerInstitute/KempnerForge/issues/114", "resume.async-holds-everything")
class NamesAreListedOnce(ReferenceSeries):
    """Saves hold the values that existed at the first save."""

    def copy_values(self) -> Mapping[str, Array]:
        arrays = super().copy_values()
        self.names = getattr(self, "names", set(arrays))
        return {name: array for name, array in arrays.items() if name in self.names}


@fault("https://github.com/petuum/adaptdl/issues/70", "resume.overwrite-is-whole")
class DataReplaceThoseOfTheOldSave(ReferenceSeries):
    """A second save writes its data over the first, before it counts as whole."""

    def partial_file(self, step: int) -> Path:
        return self.file(step)


@fault("", "resume.overwrite-is-whole")
class NamesAndSizesOfTheOldSaveStay(ReferenceSeries):
    """A second save of other shapes keeps names and sizes of the first, and a load does not compare them."""

    def write(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        if self.file(step).exists():
            with np.load(self.file(step)) as old:
                arrays = {name: arrays[name][: len(array)] for name, array in old.items() if name in arrays}
        super().write(step, arrays, gate)

    def check(self, arrays: Mapping[str, Array], values: LiveValues) -> None:
        pass


@fault("https://github.com/keras-team/keras/issues/23251", "resume.load-places-everything")
class OtherNamesAreSkipped(ReferenceSeries):
    """A load skips saved values whose names match nothing."""

    def check(self, arrays: Mapping[str, Array], values: LiveValues) -> None:
        pass

    def place(self, arrays: Mapping[str, Array], values: LiveValues) -> None:
        super().place({name: array for name, array in arrays.items() if name in values.tree}, values)


@fault("https://github.com/KempnerInstitute/KempnerForge/issues/102", "resume.async-killed")
class LatestIsNamedBeforeTheData(ReferenceSeries):
    """A save is named the latest as it begins."""

    def write(self, step: int, arrays: Mapping[str, Array], gate: Gate) -> None:
        self.name_latest(step)
        super().write(step, arrays, gate)


@fault("https://github.com/google/orbax/issues/605", "resume.async-failure-is-told")
class ErrorsStayInTheBackground(ReferenceSeries):
    """An error of the writer is dropped."""

    def keep_error(self, error: Exception) -> None:
        pass


@fault("https://github.com/pytorch/pytorch/issues/164929", "resume.async-changes-nothing")
class BackgroundSaveDrawsNumbers(ReferenceTrainer):
    """A save in the background takes numbers of the run's random stream."""

    def views(self) -> Mapping[type, Callable[[], Any]]:
        self.draws += 1
        return super().views()
