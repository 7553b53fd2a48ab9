"""QAT: generated runs, the expected fake-quantized layers and ranges, their bounds, and checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from hypothesis import strategies as st

from conformance.checks.evidence import Verdict
from conformance.checks.subject import Subject, full, need, need_rule, supports
from conformance.oracle.bound import Bound
from conformance.search.properties import CheckedInstance, breaking, laid_out, nth
from conformance.techniques import Technique, formats, post_training
from fixtures.arrays import Array
from fixtures.model import Activation, Batch, Dense, Flatten, Head, Heads, Layer, Model
from fixtures.recipe import Adam, DynamicScaling, Qat, Recipe
from frameworks.contract import (
    Calibrated,
    CalibratedRanges,
    Capability,
    CodeRange,
    Framework,
    QatRule,
    QuantRule,
    Trainer,
    needs,
)
from frameworks.reference.quantization.post_training import QatLayers
from frameworks.reference.training.trainer import ReferenceTrainer

_RUNS = ("converts", "averages", "beyond", "predicts", "loads", "freezes", "window", "skips")

QAT = Technique(
    recipes=(Recipe(quantization=Qat()),),
    rows={"aware": "QAT", "convert": "conversion after QAT"},
    clauses={
        "quantization.aware-*": "aware",
        "quantization.ranges-follow": "aware",
        "quantization.observers-hold-still": "aware",
        "quantization.convert-is-faithful": "convert",
    },
    breaks=(
        "quantization.ranges-follow",
        "quantization.observers-hold-still",
        "quantization.convert-is-faithful",
        "quantization.aware-survives-saving",
    ),
    features=tuple(f"aware-run={kind}" for kind in _RUNS),
    places={QatLayers: ("qat_class", ReferenceTrainer)},
)


RATE = 2.0**-6


def rule_of(subject: Subject) -> QatRule:
    """Return the declared rule; end the test if there is none."""
    return need_rule(subject, Capability.QAT, QatRule)


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
        return frozenset(word for word, there in flags.items() if there)

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
                    self._holds_still(self._case.batch(rows, power, 10 * index).inputs)
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
                post_training.check_dense(verdict, rule, converted, name, verb.rows, index, weights)
            samples = case.batch(verb.rows, 0, 10 * index).inputs
            measured = converted.predict(samples)
            values = post_training.predict_outputs(case.model, converted, weights, rule, samples)
            for head, (exact, bound) in values.items():
                post_training.check_near(verdict, measured[head], exact, bound, f"converted {head}", "prediction")
            verdict.same_state(
                post_training.collect_arrays(converted),
                post_training.collect_arrays(again),
                "a second conversion",
                "differs",
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return post_training.quantized_layers(self._case.model, self._rule.linear)

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
        """Return the full state, with the ranges once there are any."""
        return self._subject.state(run) | (ranges_of(run.view(CalibratedRanges)) if self._updates else {})


_WIDTHS = st.sampled_from([2, 3, 5, 8, 17, 33, 65])
_ROWS = st.integers(1, 9) | st.sampled_from([*range(1, 10), 300, 1030])
_POWERS = st.sampled_from([0, 0, 1, -2, 3, -6])


@st.composite
def draw_case(draw: st.DrawFn, framework: Framework) -> QatCase:
    """Draw a model of one to four dense layers, and a run that begins with an update, or with a skipped one."""
    accumulation = draw(st.sampled_from([1, 1, 2, 3]))
    needed = (Capability.DYNAMIC_SCALING, Capability.FEED)
    scaled = supports(framework, *needed) and draw(st.booleans())
    averages = [0.5, 0.75] if supports(framework, Capability.AVERAGE) else []
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
def beginnings(draw: st.DrawFn, widths: st.SearchStrategy[int]) -> tuple[tuple[int, ...], list[Layer]]:
    """Draw the shape of a sample, and a layer that flattens it if it is a matrix."""
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


def _updates(accumulation: int) -> st.SearchStrategy[QatVerb]:
    sizes = st.tuples(*[_ROWS] * accumulation)
    return st.builds(TrainQat, sizes, st.tuples(*[_POWERS] * accumulation))


def _verbs(accumulation: int, scaled: bool) -> st.SearchStrategy[QatVerb]:
    """Return a strategy for verbs: updates and conversions more often than verbs that should change nothing."""
    convert, update = st.builds(Convert, st.sampled_from([9, 33, 64]), st.booleans()), _updates(accumulation)
    still = st.builds(PredictQat, _ROWS, _POWERS)
    reload = st.builds(Reload, st.sampled_from(["itself", "fresh", "used"]))
    skip: list[st.SearchStrategy[QatVerb]] = [st.just(SkipQat())] if scaled else []
    return st.one_of(update, update, convert, convert, still, reload, *skip)


@dataclass(frozen=True)
class FakeQuantized:
    """Fake-quantized values.

    Attributes:
        values: the values, float64.
        passes: 1.0 where the gradient is passed on, otherwise 0.0.
        step: the scale of each value.
        uncertain: where a value is so close to half-way that its code or gradient may differ.
    """

    values: Array
    passes: Array
    step: Array
    uncertain: Array


def fake_quantize(
    values: Array, rule: QuantRule, gradient: str, code_range: CodeRange | None = None, error: Array | float = 0.0
) -> FakeQuantized:
    """Return the fake quantization by the values' own range or a given one; `error` bounds the error of the values."""
    wide = values.astype(np.float64)
    if code_range is None:
        scale, zero = formats.scale_of(values, rule), np.zeros(values.shape)
    else:
        scale, zero = np.full(values.shape, code_range.scale), np.full(values.shape, float(code_range.zero_point))
    quotient = wide / scale
    unclipped = formats.round_quotient(quotient, rule.ties) + zero
    inside = (unclipped >= rule.low) & (unclipped <= rule.high)
    ends = (rule.low - zero, rule.high - zero)
    near = np.abs(quotient - np.floor(quotient) - 0.5) <= formats.NEAR_A_TIE * np.abs(quotient) + error / scale
    if gradient == "everywhere":
        inside = np.ones(values.shape, bool)
    elif gradient == "range":
        inside = (quotient >= ends[0]) & (quotient <= ends[1])
        near |= np.minimum(np.abs(quotient - ends[0]), np.abs(quotient - ends[1])) <= formats.NEAR_A_TIE * np.abs(
            quotient
        )
    return FakeQuantized(
        (np.clip(unclipped, rule.low, rule.high) - zero) * scale, inside.astype(np.float64), scale, near
    )


@dataclass(frozen=True)
class FakeLayer:
    """Output and gradients of a dense layer, each with its bound."""

    outputs: Array
    outputs_bound: Array
    weight_gradient: Array
    weight_bound: Array
    input_gradient: Array
    input_bound: Array


def layer(
    inputs: Array,
    weight: Array,
    bias: Array,
    rule: QatRule,
    ranges: tuple[CodeRange, CodeRange | None],
    passed_back: Array,
) -> FakeLayer:
    """Return a dense layer of float32 inputs (n, k) and weight (k, m), by the ranges of inputs and outputs.

    `passed_back` is the gradient of the layer's output, (n, m). Where a code is uncertain, bounds include the effect of
    both codes.
    """
    linear, gradient = rule.linear, rule.gradient
    x = FakeQuantized(
        inputs.astype(np.float64), np.ones(inputs.shape), np.zeros(inputs.shape), np.zeros(inputs.shape, bool)
    )
    if linear.inputs is not None:
        x = fake_quantize(inputs, linear.inputs, gradient, ranges[0])
    w = fake_quantize(weight, linear.weight, gradient)
    k, n, m = weight.shape[0], len(inputs), weight.shape[1]
    exact = x.values @ w.values + bias
    loose = (x.uncertain * x.step) @ np.abs(w.values) + np.abs(x.values) @ (w.uncertain * w.step)
    rounding = (k + 8) * formats.U * (np.abs(x.values) @ np.abs(w.values) + np.abs(bias)) + loose
    back, doubt = passed_back.astype(np.float64), np.zeros((n, m))
    outputs, bound = exact, rounding
    if linear.outputs is not None and ranges[1] is not None:
        y = fake_quantize(exact, linear.outputs, gradient, ranges[1], rounding)
        outputs = y.values
        bound = y.uncertain * y.step + 4 * formats.U * (np.abs(y.values) + y.step)
        back, doubt = back * y.passes, np.abs(back) * y.uncertain
    return FakeLayer(
        outputs,
        bound,
        (x.values.T @ back) * w.passes,
        _gradient_bound(x.values.T, back, doubt, n)
        + np.abs(x.values.T @ back) * w.uncertain
        + (x.uncertain * x.step).T @ np.abs(back),
        (back @ w.values.T) * x.passes,
        _gradient_bound(back, w.values.T, None, m)
        + doubt @ np.abs(w.values.T)
        + np.abs(back @ w.values.T) * x.uncertain
        + np.abs(back) @ (w.uncertain * w.step).T,
    )


def _gradient_bound(left: Array, right: Array, doubt: Array | None, terms: int) -> Array:
    """Return the bound of a product of two matrices, where gradients in the right one may be off by `doubt`."""
    bound = (terms + 16) * formats.U * (np.abs(left) @ np.abs(right))
    return bound if doubt is None else bound + np.abs(left) @ doubt


def following(batches: Sequence[tuple[float, float]], average: float) -> list[tuple[float, float]]:
    """Return the range after each batch, from the lowest and highest value of each; the first batch sets the range."""
    result = [batches[0]]
    for ends in batches[1:]:
        last = result[-1]
        result.append((last[0] + average * (ends[0] - last[0]), last[1] + average * (ends[1] - last[1])))
    return result


def codes_of(ends: tuple[float, float], rule: QuantRule) -> tuple[float, float]:
    """Return the scale of a range, and its unrounded zero point."""
    row = np.array([ends])
    whole = QuantRule(rule.low, rule.high, rule.divisor, rule.symmetric, epsilon=rule.epsilon)
    scale = float(formats.scale_of(row, whole)[0, 0])
    return scale, 0.0 if rule.symmetric else float(np.clip(rule.low - min(ends[0], 0.0) / scale, rule.low, rule.high))


def ranges_of(observed: Mapping[str, Calibrated]) -> dict[str, Array]:
    """Return ranges of inputs and outputs, with all bits."""
    result: dict[str, Array] = {}
    for name, calibrated in observed.items():
        result[f"inputs of {name}"] = np.array([calibrated.inputs.scale, calibrated.inputs.zero_point])
        if calibrated.outputs is not None:
            result[f"outputs of {name}"] = np.array([calibrated.outputs.scale, calibrated.outputs.zero_point])
    return result


def check_following(
    verdict: Verdict, rule: QatRule, code_range: CodeRange, batch_ranges: Sequence[tuple[float, float]], what: str
) -> None:
    """Check that an input range is the moving average of the batches' ranges, each given as (lowest, highest).

    Raises:
        ValueError: inputs have no codes.
    """
    if rule.linear.inputs is None:
        raise ValueError("inputs have no codes")
    scale, zero = codes_of(following(batch_ranges, rule.average)[-1], rule.linear.inputs)
    derivation = {"method": "roundings of float32, three a batch and four of the scale", "u": formats.U}
    roundings = Bound((3 * len(batch_ranges) + 4) * formats.U, derivation)
    verdict.within(abs(code_range.scale - scale) / scale, roundings, f"scale {what}", "scale")
    half = Bound(0.5 + 512 * roundings.value, {"method": "half a code, from low - min / scale"})
    verdict.within(abs(code_range.zero_point - zero), half, f"zero point {what}", "zero-point")
