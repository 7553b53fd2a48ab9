"""Trains the sides of a scenario in turn, round by round, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from conformance.scenarios.scenario import Quality, Scenario, Setting, Side
from fixtures.arrays import Array
from fixtures.model import Batch, Window
from frameworks.contract import Capability, Framework, Trainer, Unsupported, needs


@dataclass(eq=False)
class Seen:
    """What was seen of one side.

    Attributes:
        losses, scales, skipped: of every update; the scale is the one after it.
        seconds: of every round.
        quality: on the test batch after the last round, None if it never came to that.
        saved_bytes: between forward and backward of one micro-batch, None where nobody counts them.
        moved: 2-norm of the way that the parameters went.
        distance: how far they end from those of the side beside, as a share of the way that side went.
        error: what ended the side before its time.
        lasted: seconds, making the trainer included.
    """

    side: Side
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    quality: float | None = None
    saved_bytes: int | None = None
    moved: float = 0.0
    distance: float | None = None
    error: Exception | None = None
    lasted: float = 0.0


class _TrainedSide:
    """One side's training run."""

    def __init__(self, framework: Framework, setting: Setting, side: Side) -> None:
        self.seen = Seen(side)
        self._trainer: Trainer | None = None
        self._framework, self._setting = framework, setting

    @property
    def going(self) -> bool:
        return self.seen.error is None

    def attempt(self, step: Callable[[], None]) -> None:
        """Runs a step unless an earlier one failed; an error ends this side and no other."""
        if not self.going:
            return
        begun = time.perf_counter()
        try:
            step()
        except Exception as error:
            self.seen.error = error
        self.seen.lasted += time.perf_counter() - begun

    def begin(self, last: Batch) -> None:
        recipe = self.seen.side.recipe
        for capability in (*_asked(self._setting), *needs(recipe), *self.seen.side.needs(last)):
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
        self.seen.seconds.append(time.perf_counter() - begun)
        self.seen.losses += [float(update.loss) for update in updates]
        self.seen.scales += [float(update.scale_after) for update in updates]
        self.seen.skipped += [bool(update.skipped) for update in updates]

    def end(self, quality: Quality) -> None:
        test = self._setting.test
        self.seen.quality = quality.of(self.trainer.predict(test.inputs), test)

    def count(self, batch: Batch) -> None:
        if self._framework.declares(Capability.SAVED_BYTES).supported:
            fresh = self._framework.trainer(self._setting.model, self.seen.side.recipe)
            self.seen.saved_bytes = int(fresh.saved_bytes(batch))


def train(
    framework: Framework, scenario: Scenario, setting: Setting, rounds: int, tell: Callable[[int], None]
) -> tuple[Seen, ...]:
    """Trains every side that the framework declares, from the same weights, on the same batches.

    Args:
        rounds: how many; the training data are gone through again and again.
        tell: is called with the number of each round that is done.
    """
    starts = range(0, len(setting.train), scenario.batch)
    batches = [setting.train.part(at, min(at + scenario.batch, len(setting.train))) for at in starts]
    runs = [_TrainedSide(framework, setting, side) for side in scenario.sides]
    for run in runs:
        run.attempt(partial(run.begin, batches[-1]))
    order = np.random.default_rng(0)
    for done in range(rounds):
        for place in order.permutation(len(runs)):
            run = runs[place]
            windows = run.seen.side.windows(batches[done % len(batches)])
            if windows:
                run.attempt(partial(run.round, windows))
            else:
                run.seen.seconds.append(float("nan"))
        tell(done + 1)
    for run in runs:
        run.attempt(partial(run.end, scenario.quality))
        run.attempt(partial(run.count, run.seen.side.windows(batches[0])[0][0]))
    _distances(scenario, setting, runs)
    return tuple(run.seen for run in runs)


def _asked(setting: Setting) -> tuple[Capability, ...]:
    wide = any(head.format == "float64" for head in setting.model.heads.heads)
    return (Capability.FLOAT64_HEADS,) if wide else ()


def _flat(parameters: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in parameters.values()])


def _distances(scenario: Scenario, setting: Setting, runs: list[_TrainedSide]) -> None:
    ends = {run.seen.side.label: _flat(run.trainer.parameters()) for run in runs if run.going}
    for run in runs:
        if run.going:
            start = _flat(setting.model.weights(run.seen.side.recipe.seed))
            run.seen.moved = float(np.linalg.norm(ends[run.seen.side.label] - start))
    moved = {run.seen.side.label: run.seen.moved for run in runs}
    base = scenario.sides[0].label
    for run in runs:
        label, beside = run.seen.side.label, run.seen.side.beside or base
        if run.going and beside != label and beside in ends:
            far = float(np.linalg.norm(ends[label] - ends[beside]))
            run.seen.distance = far / moved[beside] if far else 0.0
