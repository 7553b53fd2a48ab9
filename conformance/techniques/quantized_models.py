"""Generated quantized models: models quantized after training and QAT runs, their checks, and their strategies."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from conformance.checks.subject import Subject, full, need, supports
from conformance.search import CheckedInstance, Property, breaking, laid_out, nth
from conformance.techniques import Technique, post_training
from conformance.techniques.qat import check_following, ranges_of
from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Dense, Flatten, Head, Heads, Layer, LayerNorm, Model, dense_weights
from fixtures.recipe import Adam, DynamicScaling, Qat, Recipe
from frameworks.contract import (
    CalibratedRanges,
    Capability,
    Framework,
    LinearRule,
    PostTraining,
    QatRule,
    QuantizedModel,
    Trainer,
    needs,
)

RATE = 2.0**-6
"""Learning rate of QAT runs."""

_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 31, 33, 64, 65])
_ROWS = st.sampled_from([1, 2, 3, 7, 9, 16, 33, 300, 520])
_BETWEEN: tuple[Layer, ...] = (Activation("relu"), Activation("tanh"), LayerNorm())
_QAT_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 33, 65])
_QAT_ROWS = st.integers(1, 9) | st.sampled_from([*range(1, 10), 300, 1030])
_POWERS = st.sampled_from([0, 0, 1, -2, 3, -6])
_HEADS = st.sampled_from([("output",), ("a", "b"), ("a", "ab")])
_QAT_ACTIVATIONS = st.sampled_from([(Activation("relu"),), (Activation("tanh"),), ()])

Receiver = Literal["itself", "other", "used"]


@dataclass(frozen=True)
class PredictBatch:
    """A prediction of `rows` samples, whose largest values are about 2 to `power`."""

    rows: int
    power: int = 0


@dataclass(frozen=True)
class RunLayers:
    """A call of each dense layer alone, on a matrix of `rows` rows."""

    rows: int
    seed: int


@dataclass(frozen=True)
class SaveAndLoad:
    """A save, and a load into the model itself, another one, or another used one, with which the case continues."""

    into: Receiver


QuantizedVerb = PredictBatch | RunLayers | SaveAndLoad


@dataclass(frozen=True)
class QuantizedCase(CheckedInstance):
    """A trained model, a technique that quantizes it, and the verbs that follow.

    Attributes:
        skip: names of the weights of dense layers that are not quantized.
        power: weights are multiplied by 2 to this power.
        batches: number of rows of each calibration batch.
        seed: of weights and samples.
    """

    technique: str
    model: Model
    skip: tuple[str, ...]
    power: int
    batches: tuple[int, ...]
    verbs: tuple[QuantizedVerb, ...]
    seed: int

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
        flags = {
            "quantized=skips": bool(self.skip),
            "quantized=loads": any(isinstance(verb, SaveAndLoad) for verb in self.verbs),
            "quantized=small-weights": self.power < 0,
            "quantized=bias-before-dense": _has_bias_before_dense(self.model),
        }
        return frozenset({f"technique={self.technique}", *(word for word, present in flags.items() if present)})

    def check(self, subject: Subject) -> None:
        """Check the model at first and after every verb."""
        need(subject, Capability(f"quantization.{self.technique}"))
        with TemporaryDirectory() as folder:
            self._check(subject, Path(folder))

    def weights(self, seed: int) -> dict[str, Array]:
        """Return the trained weights."""
        drawn = post_training.unlike_weights(self.model, seed)
        dense = dense_weights(self.model)
        scaled = {name: v * np.float32(2.0**self.power) if name in dense else v for name, v in drawn.items()}
        return {name: laid_out(value, nth(self.seed + index)) for index, (name, value) in enumerate(scaled.items())}

    def samples(self, rows: int, power: int, index: int) -> Array:
        """Return a batch of samples (rows, ...), float32."""
        rng = np.random.default_rng([self.seed, 51, index])
        values = np.asarray(rng.standard_normal((rows, *self.model.sample)) * 2.0**power, np.float32)
        return laid_out(values, nth(self.seed + index))

    def _make_model(self, subject: Subject, seed: int) -> QuantizedModel:
        quantize, batches = subject.framework.rule(PostTraining).quantize, self._calibration()
        return quantize(self.technique, self.model, self.weights(seed), batches, self.skip)

    def _calibration(self) -> tuple[Array, ...]:
        return tuple(self.samples(rows, index % 3 - 1, 100 + index) for index, rows in enumerate(self.batches))

    def _check(self, subject: Subject, folder: Path) -> None:
        rule, weights = subject.framework.rule(PostTraining).rules()[self.technique], self.weights(self.seed)
        current = self._make_model(subject, self.seed)
        self._check_stored(current, rule, weights)
        if _saw_nothing(current):
            return
        state = post_training.collect_arrays(current)
        for index, verb in enumerate(self.verbs):
            clause = "quantization.dynamic-scale"
            match verb:
                case PredictBatch():
                    samples = self.samples(verb.rows, verb.power, index)
                    self._check_prediction(subject, current, rule, weights, samples)
                case RunLayers():
                    self._check_layers(current, rule, weights, verb)
                case SaveAndLoad():
                    clause = "quantization.survives-saving"
                    current = self._save_and_load(subject, current, verb, folder / str(index))
            with breaking(clause) as verdict:
                verdict.same_state(
                    post_training.collect_arrays(current), state, f"the model after step {index + 1}", "differs"
                )

    def _save_and_load(
        self, subject: Subject, current: QuantizedModel, verb: SaveAndLoad, folder: Path
    ) -> QuantizedModel:
        current.save(folder)
        receiver = current if verb.into == "itself" else self._make_model(subject, self.seed + 1)
        if verb.into == "used":
            receiver.predict(self.samples(2, 0, 200))
        receiver.restore(folder)
        return receiver

    def _check_stored(self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array]) -> None:
        """Check that the selected layers have the rule's codes, and the calibrated ranges."""
        wanted = sorted(set(post_training.quantized_layers(self.model, rule)) - set(self.skip))
        with breaking("quantization.only-what-was-asked") as verdict:
            post_training.check_chosen(verdict, quantized, weights, wanted)
        with breaking("quantization.weights-as-declared") as verdict:
            post_training.check_weights(verdict, quantized, rule, weights)
        if rule.ranges != "calibration":
            return
        batches = self._calibration()
        by_layer = post_training.layer_inputs_and_outputs(self.model, weights, batches)
        terms = sum(shape[0] + 8 for shape in dense_weights(self.model).values())
        times = post_training.conditions(self.model, weights, batches, by_layer)
        with breaking("quantization.calibrated-range") as verdict:
            for name, ranges in quantized.calibrated_ranges().items():
                post_training.check_ranges(verdict, rule, name, ranges, by_layer[name], math.ceil(terms * times[name]))

    def _check_layers(
        self, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], verb: RunLayers
    ) -> None:
        """Check that each layer alone computes the result of its codes, or of its weight if it is not quantized."""
        with breaking("quantization.linear-arithmetic") as verdict:
            for name, weight in quantized.weights().items():
                bias, width = weights.get(post_training.bias_of(name)), len(weights[name])
                if weight is not None:
                    inputs = _inputs(rule, quantized, name, verb, width)
                    post_training.check_layer(verdict, rule, quantized, name, inputs, bias)
                    continue
                drawn = np.random.default_rng([verb.seed, 52]).standard_normal((verb.rows, width))
                post_training.check_float_layer(verdict, quantized, name, drawn.astype(np.float32), weights[name], bias)

    def _check_prediction(
        self, subject: Subject, quantized: QuantizedModel, rule: LinearRule, weights: dict[str, Array], samples: Array
    ) -> None:
        """Check that a prediction equals its layers in sequence, as far as codes allow, and a fresh model's prediction.

        Models with norms skip the former, compiled frameworks the latter: last digits differ between their programs.
        """
        measured = quantized.predict(samples)
        if not any(isinstance(layer, LayerNorm) for layer in self.model.layers):
            with breaking("quantization.linear-arithmetic") as verdict:
                expected = post_training.predict_outputs(self.model, quantized, weights, rule, samples)
                for head, (values, bound) in expected.items():
                    post_training.check_near(
                        verdict, measured[head], values, bound, f"prediction of {head}", "prediction"
                    )
        if not subject.conventions.compiled:
            with breaking("quantization.dynamic-scale") as verdict:
                fresh = self._make_model(subject, self.seed).predict(samples)
                verdict.same_state(measured, fresh, "a prediction, compared with a fresh model", "differs")


def _inputs(rule: LinearRule, quantized: QuantizedModel, name: str, verb: RunLayers, width: int) -> Array:
    """Return inputs for a layer; if the rule has outliers, the verb's seed selects one of the `CASES`."""
    if math.isinf(rule.outliers):
        return post_training.input_values(rule, quantized, name, verb.rows, width, verb.seed)
    cases = tuple(post_training.CASES.values())
    return cases[verb.seed % len(cases)](verb.rows, width, rule, verb.seed)


def _has_bias_before_dense(model: Model) -> bool:
    """Return whether a dense layer with a bias is directly followed by another dense layer or the heads."""
    return any(
        isinstance(layer, Dense) and layer.bias and isinstance(after, Dense | Heads)
        for layer, after in pairwise(model.layers)
    )


def _saw_nothing(quantized: QuantizedModel) -> bool:
    """Return whether calibration saw only zeros in some layer, whose range is then empty."""
    return any(
        code_range is not None and code_range.scale == 0.0
        for ranges in quantized.calibrated_ranges().values()
        for code_range in (ranges.inputs, ranges.outputs)
    )


@dataclass(frozen=True)
class TrainQat:
    """An update from micro-batches of these rows, whose largest values are about 2 to these powers."""

    rows: tuple[int, ...]
    powers: tuple[int, ...]


@dataclass(frozen=True)
class SkipQat:
    """A window of infinite gradients, which the scaler skips; only in runs with scaling."""


@dataclass(frozen=True)
class PredictQat:
    """A prediction of `rows` samples, whose largest values are about 2 to `power`."""

    rows: int
    power: int


@dataclass(frozen=True)
class Convert:
    """A conversion, followed by checks of each layer and of a prediction of `rows` samples.

    Attributes:
        beyond: whether results beyond the range, which take its last code, are judged too.
    """

    rows: int
    beyond: bool = False


@dataclass(frozen=True)
class Reload:
    """A save, and a load into the run itself, a new run, or one trained on other samples, which then continues."""

    into: Literal["itself", "fresh", "used"]


QatVerb = TrainQat | SkipQat | PredictQat | Convert | Reload


@dataclass(frozen=True)
class QatCase(CheckedInstance):
    """A QAT run.

    Attributes:
        freeze: number of updates after which ranges are frozen, None for never.
        accumulation: number of micro-batches of an update.
        seed: of weights and samples.
        scaled: whether the loss is scaled, by a power of two that no ordinary window changes.
        average: decay of the moving average, None for no average; conversion does not use the average.
    """

    model: Model
    freeze: int | None
    accumulation: int
    verbs: tuple[QatVerb, ...]
    seed: int
    scaled: bool = False
    average: float | None = None

    def words(self) -> frozenset[str]:
        """Return the features that exclusions may name."""
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
        return frozenset(word for word, present in flags.items() if present)

    def check(self, subject: Subject) -> None:
        """Check the run after every verb."""
        need(subject, Capability.QAT, *needs(self.recipe()))
        with TemporaryDirectory() as folder:
            _QatPlay(subject, self, Path(folder)).play()

    def recipe(self) -> Recipe:
        """Return the recipe of the run."""
        scaling = DynamicScaling(2.0**8, interval=1000) if self.scaled else None
        recipe = Recipe(Adam(RATE), scaling=scaling, accumulation=self.accumulation)
        return recipe.replace(quantization=Qat(self.freeze), average=self.average)

    def batch(self, rows: int, power: int, index: int) -> Batch:
        """Return samples and targets."""
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
        """Play all verbs; before the first update nothing is converted and no range is checked."""
        for index, verb in enumerate(self._case.verbs):
            match verb:
                case TrainQat():
                    self._train(verb, index)
                case SkipQat():
                    self._skip()
                case PredictQat(rows=rows, power=power):
                    self._check_prediction(self._case.batch(rows, power, 10 * index).inputs)
                case Convert() if self._updates:
                    self._convert(verb, index)
                case Reload(into=into):
                    self._reload(into, self._folder / str(index))

    def _make_trainer(self) -> Trainer:
        case = self._case
        return self._subject.trainer(case.model, case.recipe(), post_training.unlike_weights(case.model, case.seed))

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
        """Check the range of the first dense layer's inputs, which are the samples."""
        if self._rule.linear.inputs is None:
            return
        observed = self._run.view(CalibratedRanges)
        first = min(observed, key=lambda name: int(name.partition(".")[0]))
        what = f"of the inputs of {first} after update {self._updates}"
        with breaking("quantization.ranges-follow") as verdict:
            check_following(verdict, self._rule, observed[first].inputs, self._batch_ranges, what)

    def _check_prediction(self, inputs: Array) -> None:
        before = self._subject.state(self._run)
        self._run.predict(inputs)
        with breaking("quantization.observers-hold-still") as verdict:
            verdict.same_state(self._subject.state(self._run), before, "the run after a prediction", "moved")

    def _convert(self, verb: Convert, index: int) -> None:
        run, rule, case = self._run, self._rule.linear, self._case
        need(self._subject, Capability.CONVERT)
        before, known, weights = self._subject.state(run), run.view(CalibratedRanges), run.parameters()
        converted, repeated = run.convert(), run.convert()
        with breaking("quantization.convert-is-faithful") as verdict:
            verdict.same_state(self._subject.state(run), before, "the run after a conversion", "run-changed")
            post_training.check_chosen(verdict, converted, weights, sorted(known))
            post_training.check_weights(verdict, converted, rule, weights)
            for name, ranges in known.items():
                post_training.check_same_ranges(verdict, name, converted.calibrated_ranges()[name], ranges)
            for name, shape in self._shapes().items():
                inputs = post_training.input_values(rule, converted, name, verb.rows, shape[0], index)
                bias = weights.get(post_training.bias_of(name))
                if not verb.beyond:
                    inputs = post_training.rows_with_codes(rule, converted, name, inputs, bias)
                post_training.check_layer(verdict, rule, converted, name, inputs, bias)
            for name in post_training.small_layers(case.model, rule):
                post_training.check_dense(verdict, rule, converted, name, weights, rows=verb.rows, seed=index)
            samples = case.batch(verb.rows, 0, 10 * index).inputs
            measured = converted.predict(samples)
            values = post_training.predict_outputs(case.model, converted, weights, rule, samples)
            for head, (exact, bound) in values.items():
                post_training.check_near(verdict, measured[head], exact, bound, f"converted {head}", "prediction")
            arrays, expected = post_training.collect_arrays(converted), post_training.collect_arrays(repeated)
            verdict.same_state(arrays, expected, "a second conversion", "differs")

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return post_training.quantized_layers(self._case.model, self._rule.linear)

    def _reload(self, into: str, folder: Path) -> None:
        need(self._subject, Capability.CHECKPOINT)
        saved = self._full_state(self._run)
        self._run.save(folder)
        target = self._run if into == "itself" else self._make_trainer()
        if into == "used":
            other = self._case.batch(3, 2, 900)
            for _ in range(2):
                target.update((other,) * self._case.accumulation)
        target.restore(folder)
        self._run = target
        with breaking("quantization.aware-survives-saving") as verdict:
            verdict.same_state(self._full_state(target), saved, "the restored run", "load-differs")

    def _full_state(self, run: Trainer) -> dict[str, Array]:
        """Return the full state, with the ranges once there are any."""
        return self._subject.state(run) | (ranges_of(run.view(CalibratedRanges)) if self._updates else {})


def draw_quantization_case(framework: Framework) -> SearchStrategy[QuantizedCase | QatCase]:
    """Return a strategy for models quantized after training and, if the framework converts them, QAT models."""
    trained = _draw_quantized_case(framework)
    converts = supports(framework, Capability.QAT, Capability.CONVERT)
    return trained | draw_qat_case(framework) if converts else trained


@st.composite
def _draw_quantized_case(draw: st.DrawFn, framework: Framework) -> QuantizedCase:
    """Draw a case of a technique that the framework declares; if there is none, of one that it refuses."""
    declared = [t for t in post_training.TECHNIQUES if framework.declares(Capability(f"quantization.{t}")).supported]
    technique = draw(st.sampled_from(declared or post_training.TECHNIQUES[:1]))
    model = draw(_models())
    if technique in declared:
        model = large_enough(model, framework.rule(PostTraining).rules()[technique].smallest)
    names = sorted(dense_weights(model))
    contained = [name for name in names if any(name != other and name in other for other in names)]
    skipped = st.sampled_from([*names, *contained * 6])
    skip = draw(st.lists(skipped, min_size=1, max_size=2, unique=True)) if draw(st.booleans()) else []
    verbs = tuple(draw(st.lists(_verbs(), min_size=1, max_size=4)))
    rows = st.integers(1, 9) | st.sampled_from([300, 1030, 2051])
    batches = tuple(draw(st.lists(rows, min_size=1, max_size=3)))
    power = draw(st.sampled_from([0, 0, 0, -8, 4]))
    return QuantizedCase(technique, model, tuple(skip), power, batches, verbs, draw(st.integers(0, 99)))


def large_enough(model: Model, smallest: int) -> Model:
    """Return the model, with a wider first dense layer if no weight had enough entries for codes."""
    sizes = {name: math.prod(shape) for name, shape in dense_weights(model).items()}
    if max(sizes.values()) >= smallest:
        return model
    position = next(index for index, layer in enumerate(model.layers) if isinstance(layer, Dense))
    inputs, _ = dense_weights(model)[f"{position}.weight"]
    wider = replace(cast(Dense, model.layers[position]), units=-(-smallest // inputs))
    return replace(model, layers=(*model.layers[:position], wider, *model.layers[position + 1 :]))


@st.composite
def _models(draw: st.DrawFn) -> Model:
    """Draw a model of up to three dense layers or, now and then, so many that the number of a layer has two digits."""
    sample, body = draw(beginnings(_WIDTHS))
    deep = draw(st.integers(0, 4)) == 0
    count = 6 if deep else draw(st.integers(1, 3))
    for _ in range(count):
        body.append(Dense(draw(st.sampled_from([3, 5, 8]) if deep else _WIDTHS), bias=draw(st.integers(0, 3)) > 0))
        if deep or draw(st.booleans()):
            body.append(draw(st.sampled_from(_BETWEEN)))
    names = draw(st.sampled_from([("output",), ("a", "b"), ("a", "ab")]))
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in names))
    return Model("drawn", (*body, heads), sample, tuple((name, "squared_error") for name in names))


def _verbs() -> SearchStrategy[QuantizedVerb]:
    """Return a strategy for predictions, calls of layers alone, and saves with loads."""
    into = st.sampled_from(["itself", "other", "used"])
    return st.one_of(
        st.builds(PredictBatch, _ROWS, st.sampled_from([0, 0, 3, -6])),
        st.builds(RunLayers, _ROWS, st.integers(0, 99)),
        st.builds(SaveAndLoad, into),
    )


@st.composite
def draw_qat_case(draw: st.DrawFn, framework: Framework) -> QatCase:
    """Draw a model of one to four dense layers, and a run that begins with an update, or with a skipped one."""
    accumulation = draw(st.sampled_from([1, 1, 2, 3]))
    needed = (Capability.DYNAMIC_SCALING, Capability.FEED)
    scaled = supports(framework, *needed) and draw(st.booleans())
    averages = [0.5, 0.75] if supports(framework, Capability.AVERAGE) else []
    first = draw(_qat_updates(accumulation))
    verbs = draw(st.lists(_qat_verbs(accumulation, scaled), min_size=1, max_size=6))
    skips: list[QatVerb] = [SkipQat()] if scaled and draw(st.booleans()) else []
    return QatCase(
        draw(_qat_models()),
        draw(st.sampled_from([None, None, 1, 2, 3])),
        accumulation,
        (*skips, first, *verbs),
        draw(st.integers(0, 99)),
        scaled,
        draw(st.sampled_from([None, None, *averages])),
    )


@st.composite
def beginnings(draw: st.DrawFn, widths: st.SearchStrategy[int]) -> tuple[tuple[int, ...], list[Layer]]:
    """Draw the shape of a sample, and a layer that flattens it if it is a matrix."""
    if draw(st.integers(0, 3)) == 0:
        return (draw(st.integers(2, 3)), draw(widths)), [Flatten()]
    return (draw(widths),), []


@st.composite
def _qat_models(draw: st.DrawFn) -> Model:
    sample, body = draw(beginnings(_QAT_WIDTHS))
    for _ in range(draw(st.integers(0, 3))):
        body.append(Dense(draw(_QAT_WIDTHS), bias=draw(st.integers(0, 3)) > 0))
        body += draw(_QAT_ACTIVATIONS)
    heads = Heads(tuple(Head(name, draw(st.sampled_from([2, 3, 5]))) for name in draw(_HEADS)))
    return Model("aware", (*body, heads), sample, tuple((head.name, "squared_error") for head in heads.heads))


def _qat_updates(accumulation: int) -> st.SearchStrategy[QatVerb]:
    sizes = st.tuples(*[_QAT_ROWS] * accumulation)
    return st.builds(TrainQat, sizes, st.tuples(*[_POWERS] * accumulation))


def _qat_verbs(accumulation: int, scaled: bool) -> st.SearchStrategy[QatVerb]:
    """Return a strategy for verbs: updates and conversions more often than verbs that should change nothing."""
    convert, update = st.builds(Convert, st.sampled_from([9, 33, 64]), st.booleans()), _qat_updates(accumulation)
    prediction = st.builds(PredictQat, _QAT_ROWS, _POWERS)
    reload = st.builds(Reload, st.sampled_from(["itself", "fresh", "used"]))
    skip: list[st.SearchStrategy[QatVerb]] = [st.just(SkipQat())] if scaled else []
    return st.one_of(update, update, convert, convert, prediction, reload, *skip)


QUANTIZED_MODELS = Technique(
    properties={"laws.quantized-models": Property(number=11, draw=draw_quantization_case, share=1 / 4)},
    features=tuple(f"technique={name}" for name in post_training.TECHNIQUES),
)
