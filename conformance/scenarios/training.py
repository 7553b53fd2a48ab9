"""Trains the sides of a scenario interleaved, round by round, so that disturbances affect all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from conformance.scenarios.scenario import (
    MODEL,
    REDUCED,
    SAVED,
    Quality,
    QuantizedSide,
    Scenario,
    Setting,
    Side,
    offloaded_bytes,
    rank_bytes,
)
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Recipe
from frameworks.base import window_across_ranks
from frameworks.contract import Capability, Framework, PostTraining, QuantizedModel, Trainer, Unsupported, needs


@dataclass(eq=False)
class SideResult:
    """Results of one side.

    Attributes:
        losses, scales, skipped: of every update; the scale is the one after it.
        seconds: of every round.
        control: seconds of the first side in the same rounds; empty of that side itself, and where it failed.
        quality: on the test batch after the last round, None if it was not reached.
        counts: bytes and reductions that were counted, by their names in a record.
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
    counts: dict[str, int] = field(default_factory=dict)
    apart: float | None = None
    distance: float | None = None
    error: Exception | None = None
    lasted: float = 0.0


class _TrainedSide:
    """One side's training run."""

    def __init__(self, framework: Framework, setting: Setting, side: Side) -> None:
        self.result = SideResult(side)
        self.trainer: Trainer
        self.outputs: dict[str, Array]
        self.parameters: dict[str, Array]
        self._framework, self._setting = framework, setting

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
        self.trainer = self._framework.trainer(self._setting.model, recipe)

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
        self.result.quality, self.result.counts[MODEL] = quality.of(outputs, test), made.stored_bytes()
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

    def count_saved_bytes(self, batch: Batch) -> None:
        if self._framework.declares(Capability.SAVED_BYTES).supported:
            fresh = self._framework.trainer(self._setting.model, self.result.side.recipe)
            self.result.counts[SAVED] = int(fresh.saved_bytes(batch))

    def count_resident_bytes(self, window: Window) -> None:
        side = self.result.side
        if side.ranks:
            self.result.counts |= _rank_resident_bytes(self._framework, self._setting.model, side.recipe, window)
        else:
            self.result.counts |= _process_resident_bytes(self.trainer, window)

    def count_offloaded(self, window: Window) -> None:
        self.result.counts |= _offloaded_in_an_update(self.trainer, window)


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
        runs[0].result.counts[MODEL] = sum(value.nbytes for value in runs[0].parameters.values())
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
    if not any(side.ranks for side in scenario.sides):
        run.attempt(partial(run.count_saved_bytes, window[0]))
    if scenario.shows_resident_bytes:
        run.attempt(partial(run.count_resident_bytes, window))


def _asked(setting: Setting) -> tuple[Capability, ...]:
    wide = any(head.format == "float64" for head in setting.model.heads.heads)
    return (Capability.FLOAT64_HEADS,) if wide else ()


def _flat(parameters: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in parameters.values()])


def _distances(scenario: Scenario, setting: Setting, runs: list[_TrainedSide]) -> None:
    ends = {run.result.side.label: _flat(run.parameters) for run in runs if run.going}
    seeds = {run.result.side.label: run.result.side.recipe.seed for run in runs}
    base = scenario.sides[0].label
    for run in runs:
        label, beside = run.result.side.label, run.result.side.beside or base
        if run.going and beside != label and beside in ends:
            far = float(np.linalg.norm(ends[label] - ends[beside]))
            way = ends[beside] - _flat(setting.model.weights(seeds[beside]))
            run.result.distance = far / float(np.linalg.norm(way)) if far else 0.0


def _process_resident_bytes(trainer: Trainer, window: Window) -> dict[str, int]:
    """Resident bytes of a run without ranks: whole arrays, and the optimizer's moments."""
    parameters = trainer.parameters()
    kinds = {
        "parameter": parameters,
        "gradient": trainer.gradients(window),
        "optimizer": dict(_moments(trainer.optimizer_state(), parameters)),
    }
    return {rank_bytes(kind): sum(value.nbytes for value in arrays.values()) for kind, arrays in kinds.items()}


def _moments(state: Mapping[str, Array], parameters: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """The optimizer's moments of each parameter, without counters and averages.

    An 8-bit moment counts as its codes and absmax values, not as the values that they encode.
    """
    for name, value in state.items():
        slot, _, parameter = name.partition("/")
        coded = f"codes/{name}" in state or slot == "average"
        if slot in ("codes", "absmax") or (
            not coded and parameter in parameters and value.shape == parameters[parameter].shape
        ):
            yield name, value


def _offloaded_in_an_update(trainer: Trainer, window: Window) -> dict[str, int]:
    """Offloaded bytes after one more update; for activations, bytes offloaded during it."""
    trainer.offloaded()
    trainer.update(window)
    return {offloaded_bytes(kind): size for kind, size in trainer.offloaded().items()}


def _rank_resident_bytes(framework: Framework, model: Model, recipe: Recipe, window: Window) -> dict[str, int]:
    """Counts of a new run's ranks after an update from this window, split across them: resident bytes of the rank with
    the most, and the gradients that a rank reduces in a window, where they are counted."""
    with closing(framework.rank_group(model, recipe)) as rank_group:
        rank_group.update(window_across_ranks(window, rank_group.count))
        by_rank = rank_group.resident_bytes()
        counts = {rank_bytes(kind): max(own[kind] for own in by_rank) for kind in by_rank[0] if kind != "buffer"}
        if framework.declares(Capability.RANKS_COLLECTIVES).supported:
            counts[REDUCED] = max(counted["gradients"] for counted in rank_group.collectives())
        return counts
