"""The law of QAT: ranges follow the batches, predictions change nothing, and conversions match the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks.subject import Subject, full, need
from conformance.search.arrays import laid_out, nth
from conformance.search.properties import CheckedInstance, breaking
from conformance.techniques.post_training import expected_models
from conformance.techniques.post_training.checks import (
    check_chosen,
    check_dense,
    check_layer,
    check_near,
    check_same_ranges,
    check_weights,
    collect_arrays,
    input_values,
    quantized_layers,
    rows_with_codes,
    small_layers,
    unlike_weights,
)
from conformance.techniques.qat.checks import check_following, ranges_of
from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Dense, Flatten, Head, Heads, Layer, Model
from fixtures.recipe import Adam, DynamicScaling, Qat, Recipe
from frameworks.contract import CalibratedRanges, Capability, Framework, QatRule, Trainer, needs

RATE = 2.0**-6


@dataclass(frozen=True)
class TrainQat:
    """An update from micro-batches of as many rows, whose largest values are about 2 to the powers."""

    rows: tuple[int, ...]
    powers: tuple[int, ...]


@dataclass(frozen=True)
class SkipQat:
    """A window of infinite gradients, which the scaler skips; only in runs with scaling."""


@dataclass(frozen=True)
class PredictQat:
    """A prediction of samples, of which the largest values are about 2 to the power."""

    rows: int
    power: int


@dataclass(frozen=True)
class Convert:
    """A conversion, followed by checks of each layer and of a prediction of so many rows.

    Attributes:
        beyond: whether results that have no code of their own, and take the last one, are judged too.
    """

    rows: int
    beyond: bool = False


@dataclass(frozen=True)
class Reload:
    """A save, and a load into the run itself, a new one, or one trained on other samples, which then continues."""

    into: Literal["itself", "fresh", "used"]


QatVerb = TrainQat | SkipQat | PredictQat | Convert | Reload


@dataclass(frozen=True)
class QatCase(CheckedInstance):
    """A QAT run.

    Attributes:
        freeze: updates after which ranges stay, None for never.
        accumulation: micro-batches of an update.
        seed: of weights and samples.
        scaled: whether its loss is scaled, by a power of two that no ordinary window moves.
        average: the share that a moving average keeps, None for no average, which conversion does not look at.
    """

    model: Model
    freeze: int | None
    accumulation: int
    verbs: tuple[QatVerb, ...]
    seed: int
    scaled: bool = False
    average: float | None = None

    def words(self) -> frozenset[str]:
        """What exclusions may name."""
        flags = {
            "aware-run=converts": any(isinstance(verb, Convert) for verb in self.verbs),
            "aware-run=beyond": any(isinstance(verb, Convert) and verb.beyond for verb in self.verbs),
            "aware-run=predicts": any(isinstance(verb, PredictQat) for verb in self.verbs),
            "aware-run=loads": any(isinstance(verb, Reload) for verb in self.verbs),
            "aware-run=freezes": self.freeze is not None,
            "aware-run=averages": self.average is not None,
            "aware-run=window": self.accumulation > 1,
            "aware-run=skips": any(isinstance(verb, SkipQat) for verb in self.verbs),
        }
        return frozenset(word for word, there in flags.items() if there)

    def check(self, subject: Subject) -> None:
        """Checks the run after every verb."""
        need(subject, Capability.QAT, *needs(self.recipe()))
        with TemporaryDirectory() as folder:
            _QatPlay(subject, self, Path(folder)).play()

    def recipe(self) -> Recipe:
        """How the run is trained."""
        scaling = DynamicScaling(2.0**8, interval=1000) if self.scaled else None
        recipe = Recipe(Adam(RATE), scaling=scaling, accumulation=self.accumulation)
        return recipe.replace(quantization=Qat(self.freeze), average=self.average)

    def batch(self, rows: int, power: int, index: int) -> Batch:
        """Samples and targets."""
        rng = np.random.default_rng([self.seed, 61, index])
        inputs = np.asarray(rng.standard_normal((rows, *self.model.sample)) * 2.0**power, np.float32)
        heads = self.model.heads.heads
        inputs = laid_out(inputs, nth(self.seed + index))
        return Batch(inputs, {head.name: rng.standard_normal((rows, head.units)).astype(np.float32) for head in heads})


class _QatPlay:
    """One run, the expected ranges of its first layer, and the checks after each verb."""

    def __init__(self, subject: Subject, case: QatCase, folder: Path) -> None:
        self._subject, self._case, self._folder = subject, case, folder
        self._rule: QatRule = subject.framework.rule(QatRule)
        self._updates = 0
        self._batch_ranges: list[tuple[float, float]] = []
        self._run = self._make_trainer()

    def play(self) -> None:
        """Plays all verbs; before the first update nothing is converted and no range is checked."""
        for index, verb in enumerate(self._case.verbs):
            match verb:
                case TrainQat():
                    self._train(verb, index)
                case SkipQat():
                    self._skip()
                case PredictQat(rows=rows, power=power):
                    self._holds_still(self._case.batch(rows, power, 10 * index).inputs)
                case Convert() if self._updates:
                    self._convert(verb, index)
                case Reload(into=into):
                    self._reload(into, self._folder / str(index))

    def _make_trainer(self) -> Trainer:
        case = self._case
        return self._subject.trainer(case.model, case.recipe(), unlike_weights(case.model, case.seed))

    def _train(self, verb: TrainQat, index: int) -> None:
        pairs = enumerate(zip(verb.rows, verb.powers, strict=True))
        window = tuple(self._case.batch(rows, power, 10 * index + i) for i, (rows, power) in pairs)
        self._run.update(window)
        if self._case.freeze is None or self._updates < self._case.freeze:
            self._batch_ranges += [(float(batch.inputs.min()), float(batch.inputs.max())) for batch in window]
        self._updates += 1
        self._check_ranges()

    def _skip(self) -> None:
        before = self._subject.state(self._run)
        gradients = full(self._run, np.inf)
        self._run.apply_gradients(*[gradients] * self._case.accumulation)
        after = self._subject.state(self._run)
        with breaking("quantization.ranges-follow") as verdict:
            what = "the run after a skipped window"
            verdict.same_state(after, before, what, "skip-moved", ignoring=("scaler/",))

    def _check_ranges(self) -> None:
        """The first dense layer's inputs are the samples, so that their range is known."""
        if self._rule.linear.inputs is None:
            return
        observed = self._run.view(CalibratedRanges)
        first = min(observed, key=lambda name: int(name.partition(".")[0]))
        what = f"of the inputs of {first} after update {self._updates}"
        with breaking("quantization.ranges-follow") as verdict:
            check_following(verdict, self._rule, observed[first].inputs, self._batch_ranges, what)

    def _holds_still(self, inputs: Array) -> None:
        before = self._subject.state(self._run)
        self._run.predict(inputs)
        with breaking("quantization.observers-hold-still") as verdict:
            verdict.same_state(self._subject.state(self._run), before, "the run after a prediction", "moved")

    def _convert(self, verb: Convert, index: int) -> None:
        run, rule, case = self._run, self._rule.linear, self._case
        need(self._subject, Capability.CONVERT)
        before, known, weights = self._subject.state(run), run.view(CalibratedRanges), run.parameters()
        converted, again = run.convert(), run.convert()
        with breaking("quantization.convert-is-faithful") as verdict:
            verdict.same_state(self._subject.state(run), before, "the run after a conversion", "run-changed")
            check_chosen(verdict, converted, weights, sorted(known))
            check_weights(verdict, converted, rule, weights)
            for name, ranges in known.items():
                check_same_ranges(verdict, name, converted.calibrated_ranges()[name], ranges)
            for name, shape in self._shapes().items():
                inputs = input_values(rule, converted, name, verb.rows, shape[0], index)
                bias = weights.get(name.replace("weight", "bias"))
                if not verb.beyond:
                    inputs = rows_with_codes(rule, converted, name, inputs, bias)
                check_layer(verdict, rule, converted, name, inputs, bias)
            for name in small_layers(case.model, rule):
                check_dense(verdict, rule, converted, name, verb.rows, index, weights)
            samples = case.batch(verb.rows, 0, 10 * index).inputs
            measured = converted.predict(samples)
            values = expected_models.predict_outputs(case.model, converted, weights, rule, samples)
            for head, (exact, bound) in values.items():
                check_near(verdict, measured[head], exact, bound, f"converted {head}", "prediction")
            verdict.same_state(collect_arrays(converted), collect_arrays(again), "a second conversion", "differs")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return quantized_layers(self._case.model, self._rule.linear)

    def _reload(self, into: str, folder: Path) -> None:
        need(self._subject, Capability.CHECKPOINT)
        saved = self._all_of(self._run)
        self._run.save(folder)
        target = self._run if into == "itself" else self._make_trainer()
        if into == "used":
            other = self._case.batch(3, 2, 900)
            for _ in range(2):
                target.update((other,) * self._case.accumulation)
        target.restore(folder)
        self._run = target
        with breaking("quantization.aware-survives-saving") as verdict:
            verdict.same_state(self._all_of(target), saved, "the restored run", "load-differs")

    def _all_of(self, run: Trainer) -> dict[str, Array]:
        """The full state, and the ranges if there are any."""
        return self._subject.state(run) | (ranges_of(run.view(CalibratedRanges)) if self._updates else {})


_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 33, 65])
_ROWS = st.integers(1, 9) | st.sampled_from([*range(1, 10), 300, 1030])
_POWERS = st.sampled_from([0, 0, 1, -2, 3, -6])


@st.composite
def draw_case(draw: st.DrawFn, framework: Framework) -> QatCase:
    """A model of one to four dense layers, and a run that begins with an update, or with one that is skipped."""
    accumulation = draw(st.sampled_from([1, 1, 2, 3]))
    needed = (Capability.DYNAMIC_SCALING, Capability.FEED)
    scaled = all(framework.declares(capability).supported for capability in needed) and draw(st.booleans())
    averages = [0.5, 0.75] if framework.declares(Capability.AVERAGE).supported else []
    first = draw(_updates(accumulation))
    verbs = draw(st.lists(_verbs(accumulation, scaled), min_size=1, max_size=6))
    skips: list[QatVerb] = [SkipQat()] if scaled and draw(st.booleans()) else []
    return QatCase(
        draw(_models()),
        draw(st.sampled_from([None, None, 1, 2, 3])),
        accumulation,
        (*skips, first, *verbs),
        draw(st.integers(0, 99)),
        scaled,
        draw(st.sampled_from([None, None, *averages])),
    )


@st.composite
def beginnings(draw: st.DrawFn, widths: SearchStrategy[int]) -> tuple[tuple[int, ...], list[Layer]]:
    """The shape of a sample, and the layer that makes a row of it where it is a matrix."""
    if draw(st.integers(0, 3)) == 0:
        return (draw(st.integers(2, 3)), draw(widths)), [Flatten()]
    return (draw(widths),), []


@st.composite
def _models(draw: st.DrawFn) -> Model:
    sample, body = draw(beginnings(_WIDTHS))
    for _ in range(draw(st.integers(0, 3))):
        body.append(Dense(draw(_WIDTHS), bias=draw(st.integers(0, 3)) > 0))
        body += draw(_BETWEEN)
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in draw(_HEADS)))
    return Model("aware", (*body, heads), sample, tuple((head.name, "squared_error") for head in heads.heads))


_HEADS = st.sampled_from([("output",), ("a", "b"), ("a", "ab")])
_BETWEEN = st.sampled_from([(Activation("relu"),), (Activation("tanh"),), ()])


def _updates(accumulation: int) -> SearchStrategy[QatVerb]:
    sizes = st.tuples(*[_ROWS] * accumulation)
    return st.builds(TrainQat, sizes, st.tuples(*[_POWERS] * accumulation))


def _verbs(accumulation: int, scaled: bool) -> SearchStrategy[QatVerb]:
    """Updates and conversions more often than what should change nothing."""
    convert, update = st.builds(Convert, st.sampled_from([9, 33, 64]), st.booleans()), _updates(accumulation)
    still = st.builds(PredictQat, _ROWS, _POWERS)
    reload = st.builds(Reload, st.sampled_from(["itself", "fresh", "used"]))
    skip: list[SearchStrategy[QatVerb]] = [st.just(SkipQat())] if scaled else []
    return st.one_of(update, update, convert, convert, still, reload, *skip)
