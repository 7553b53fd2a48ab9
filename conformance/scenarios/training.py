"""Trains the sides of a scenario interleaved, round by round, so that disturbances affect all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from conformance.scenarios.resident_bytes import (
    ResidentBytes,
    offloaded_in_an_update,
    process_resident_bytes,
    rank_resident_bytes,
)
from conformance.scenarios.scenario import Quality, QuantizedSide, Scenario, Setting, Side
from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract import Capability, Framework, PostTraining, QuantizedModel, Trainer, Unsupported, needs


@dataclass(eq=False)
class SideResult:
    """Results of one side.

    Attributes:
        losses, scales, skipped: of every update; the scale is the one after it.
        seconds: of every round.
        control: seconds of the first side in the same rounds; empty of that side itself, and where it failed.
        quality: on the test batch after the last round, None if it was not reached.
        saved_bytes: between forward and backward of one micro-batch, None if not counted.
        resident_bytes: resident bytes between updates, if the scenario measures them.
        away: offloaded bytes, by the kinds that the side offloads.
        moved: 2-norm of the parameters' change.
        model_bytes: of a quantized model, and of its float model.
        apart: relative distance of a quantized model's outputs on the test batch from the float ones.
        distance: distance of the final parameters from those of the side `beside`, as a share of that side's change.
        error: the exception that ended the side early.
        lasted: seconds, including the construction of the trainer.
    """

    side: Side
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    quality: float | None = None
    saved_bytes: int | None = None
    resident_bytes: ResidentBytes | None = None
    offloaded: Mapping[str, int] = field(default_factory=dict)
    model_bytes: int | None = None
    apart: float | None = None
    moved: float = 0.0
    distance: float | None = None
    error: Exception | None = None
    lasted: float = 0.0


class _TrainedSide:
    """One side's training run."""

    def __init__(self, framework: Framework, setting: Setting, side: Side) -> None:
        self.result = SideResult(side)
        self.parameters: dict[str, Array] = {}
        self._trainer: Trainer | None = None
        self._framework, self._setting = framework, setting
        self.outputs: dict[str, Array] = {}

    @property
    def going(self) -> bool:
        return self.result.error is None

    def attempt(self, step: Callable[[], None]) -> None:
        """Runs a step unless an earlier one failed; an error ends this side and no other."""
        if not self.going:
            return
        begun = time.perf_counter()
        try:
            step()
        except Exception as error:
            self.result.error = error
        self.result.lasted += time.perf_counter() - begun

    def begin(self, last: Batch) -> None:
        recipe = self.result.side.recipe
        for capability in (*_asked(self._setting), *needs(recipe), *self.result.side.needs(last)):
            declared = self._framework.declares(capability)
            if not declared.supported:
                raise Unsupported(capability, declared.reason)
        self._trainer = self._framework.trainer(self._setting.model, recipe)

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("the run has not begun")
        return self._trainer

    def round(self, windows: tuple[Window, ...]) -> None:
        begun = time.perf_counter()
        updates = [self.trainer.update(window) for window in windows]
        self.result.seconds.append(time.perf_counter() - begun)
        self.result.losses += [float(update.loss) for update in updates]
        self.result.scales += [float(update.scale_after) for update in updates]
        self.result.skipped += [bool(update.skipped) for update in updates]

    def end(self, quality: Quality) -> None:
        test = self._setting.test
        self.outputs = self.trainer.predict(test.inputs)
        self.result.quality = quality.of(self.outputs, test)
        self.parameters = self.trainer.parameters()

    def quantize(self, side: QuantizedSide, trained: _TrainedSide, quality: Quality, calibration: Array) -> None:
        """Quantizes another side's trained model, and evaluates the result."""
        if not trained.going:
            raise trained.result.error or RuntimeError(f"{trained.result.side.label} was not trained")
        made = self._quantized(side.technique, trained, calibration)
        test = self._setting.test
        outputs = made.predict(test.inputs)
        self.result.quality, self.result.model_bytes = quality.of(outputs, test), made.stored_bytes()
        wide, beside = _flat(outputs), _flat({name: trained.outputs[name] for name in outputs})
        self.result.apart = float(np.linalg.norm(wide - beside) / np.linalg.norm(beside))

    def _quantized(self, technique: str, trained: _TrainedSide, calibration: Array) -> QuantizedModel:
        capability = Capability(f"quantization.{technique or 'convert'}")
        declared = self._framework.declares(capability)
        if not declared.supported:
            raise Unsupported(capability, declared.reason)
        if not technique:
            return trained.trainer.convert()
        post_training, model = self._framework.rule(PostTraining), self._setting.model
        return post_training.quantized(technique, model, trained.parameters, (calibration,))

    def count(self, batch: Batch) -> None:
        if self._framework.declares(Capability.SAVED_BYTES).supported:
            fresh = self._framework.trainer(self._setting.model, self.result.side.recipe)
            self.result.saved_bytes = int(fresh.saved_bytes(batch))

    def count_resident_bytes(self, window: Window) -> None:
        side = self.result.side
        if side.ranks:
            self.result.resident_bytes = rank_resident_bytes(self._framework, self._setting.model, side.recipe, window)
        else:
            self.result.resident_bytes = process_resident_bytes(self.trainer, window)

    def count_offloaded(self, window: Window) -> None:
        self.result.offloaded = offloaded_in_an_update(self.trainer, window)


def train(
    framework: Framework, scenario: Scenario, setting: Setting, rounds: int, tell: Callable[[int], None]
) -> tuple[SideResult, ...]:
    """Trains every side that the framework declares, from the same weights, on the same batches.

    Args:
        rounds: how many; the training data are gone through again and again.
        tell: called with the number of each finished round, counted over all stretches.
    """
    starts = range(0, len(setting.train), scenario.batch)
    batches = [setting.train.part(at, min(at + scenario.batch, len(setting.train))) for at in starts]
    order = np.random.default_rng(0)
    runs: list[_TrainedSide] = []
    for number, sides in enumerate(scenario.stretches):
        first, *others = [_TrainedSide(framework, setting, side) for side in sides]
        for run in (first, *others):
            run.attempt(partial(run.begin, batches[-1]))
        wanted = not runs or any(run.going for run in others)
        for done in range(rounds if wanted else 0):
            _round((first, *others), batches[done % len(batches)], order)
            tell(number * rounds + done + 1)
        members = others if runs else [first, *others]
        for run in members:
            _end(run, scenario, batches[0])
        for run in others:
            run.result.control = list(first.result.seconds) if first.going else []
        runs += members
        runs[0].result.error = runs[0].result.error or first.result.error
    _distances(scenario, setting, runs)
    by_label = {run.result.side.label: run for run in runs}
    for side in scenario.quantized:
        run = _TrainedSide(framework, setting, side)
        trained = by_label[side.beside or scenario.sides[0].label]
        run.attempt(partial(run.quantize, side, trained, scenario.quality, batches[0].inputs))
        runs.append(run)
    if scenario.quantized and runs[0].going:
        runs[0].result.model_bytes = sum(value.nbytes for value in runs[0].parameters.values())
    return tuple(sorted((run.result for run in runs), key=lambda result: scenario.labels.index(result.side.label)))


def _round(runs: Sequence[_TrainedSide], batch: Batch, order: np.random.Generator) -> None:
    """Trains every side on a round's batch, in random order."""
    for place in order.permutation(len(runs)):
        run = runs[place]
        windows = run.result.side.windows(batch)
        if windows:
            run.attempt(partial(run.round, windows))
        else:
            run.result.seconds.append(float("nan"))


def _end(run: _TrainedSide, scenario: Scenario, batch: Batch) -> None:
    """Evaluates a side before the next stretch, which may end its ranks."""
    window = run.result.side.windows(batch)[0]
    run.attempt(partial(run.end, scenario.quality))
    if run.result.side.recipe.offload is not None:
        run.attempt(partial(run.count_offloaded, window))
        return
    if scenario.shows_resident_bytes:
        run.attempt(partial(run.count_resident_bytes, window))
    if not any(side.ranks for side in scenario.sides):
        run.attempt(partial(run.count, window[0]))


def _asked(setting: Setting) -> tuple[Capability, ...]:
    wide = any(head.format == "float64" for head in setting.model.heads.heads)
    return (Capability.FLOAT64_HEADS,) if wide else ()


def _flat(parameters: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in parameters.values()])


def _distances(scenario: Scenario, setting: Setting, runs: list[_TrainedSide]) -> None:
    ends = {run.result.side.label: _flat(run.parameters) for run in runs if run.going}
    for run in runs:
        if run.going:
            start = _flat(setting.model.weights(run.result.side.recipe.seed))
            run.result.moved = float(np.linalg.norm(ends[run.result.side.label] - start))
    moved = {run.result.side.label: run.result.moved for run in runs}
    base = scenario.sides[0].label
    for run in runs:
        label, beside = run.result.side.label, run.result.side.beside or base
        if run.going and beside != label and beside in ends:
            far = float(np.linalg.norm(ends[label] - ends[beside]))
            run.result.distance = far / moved[beside] if far else 0.0
