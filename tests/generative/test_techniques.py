"""The laws of codes, quantized models, delayed scales and aware training: each check fails where it should."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.search.properties import Layout, generative_settings
from conformance.techniques.float8_training import DelayedCase, DelayedStep
from conformance.techniques.formats import (
    CastCall,
    CodedCalls,
    CodeProduct,
    FakeCall,
    Matrix,
    Packing,
    QuantizerCall,
    SpoiltCall,
)
from conformance.techniques.post_training import PredictBatch, QuantizedCase, QuantizedVerb, RunLayers, SaveAndLoad
from conformance.techniques.qat import Convert, PredictQat, QatCase, QatVerb, Reload, SkipQat, TrainQat
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, Layer, Model
from frameworks.contract import Operand, Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.float8 import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceQuantizers
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults.reference import formats, quantization

MATRIX = QuantizerCall("int8-row", Matrix(3, 5, (0, 4), 0, "normal", 1))
AFFINE = QuantizerCall("uint8-tensor", Matrix(3, 5, (0,), 0, "normal", 1))
ZEROS = QuantizerCall("uint8-tensor", Matrix(1, 1, (0,), 0, "zeros", 0))
SPOILT = SpoiltCall("int8-row", Matrix(3, 5, (0, 4), 0, "normal", 1), np.nan, 0.4, 0.9)
GROUPED = SpoiltCall("int4-group", Matrix(5, 130, (0,), 0, "normal", 1), np.inf, 0.4, 0.6)
FAKE = FakeCall("fake-int8-column", 4, 3, exact=True, beyond=300, seed=2)
CAST = CastCall("float8_e4m3fn", "float32", (33,), 3, seed=3)
CASTS = CastCall("float8_e5m2", "bfloat16", (5, 7), 1, seed=3)
SCALES = CastCall("float8_e8m0fnu", "float16", (99,), 3, seed=3)
PRODUCT = CodeProduct(("int8", "int8"), (2, 4097, 3), extreme=True, seed=4)
FLOAT_PRODUCT = CodeProduct(("float8_e4m3fn", "float8_e5m2"), (2, 33, 3), extreme=False, seed=4)
PACKED = Packing(5, 3, 0, seed=5)
CALLS = (MATRIX, ZEROS, SPOILT, GROUPED, FAKE, CAST, CASTS, SCALES, PRODUCT, FLOAT_PRODUCT, PACKED)


def with_parts(**parts: type) -> type[ReferenceFramework]:
    return type("Broken", (ReferenceFramework,), parts)


def failure(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> Any:
    subject = Subject(framework("cpu"))
    return instance.failure(subject, generative_settings(subject.framework))


def clause(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> str | None:
    result = failure(instance, framework)
    return result and result.name


class _QuantizesInPlace(ReferenceQuantizers):
    def quantize(self, name: str, values: Array) -> Quantized:
        result = super().quantize(name, values)
        values[...] = result.values
        return result


class _ZeroIsBetweenCodes(ReferenceQuantizers):
    """The zero point is one further than the rule has it."""

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        return super().zero_point_of(lowest, scale, rule) + 1


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_coded_calls_on_the_reference_hold(call: Any) -> None:
    assert clause(CodedCalls((call,))) is None


@pytest.mark.parametrize(
    ("call", "framework", "name"),
    [
        (FAKE, quantization.GradientEverywhere, "quantization.straight-through"),
        (FAKE, quantization.FractionsAreCutOff, "quantization.fake-values"),
        (MATRIX, quantization.FractionsAreCutOff, "quantization.codes-as-declared"),
        (MATRIX, with_parts(quantizers_class=_QuantizesInPlace), "laws.codes"),
        (SPOILT, quantization.NanIsOverlooked, "quantization.non-finite"),
        (SPOILT, quantization.OneRowSpoilsAll, "quantization.non-finite"),
        (AFFINE, with_parts(quantizers_class=_ZeroIsBetweenCodes), "quantization.range-follows-data"),
        (CAST, formats.NaNIsDecodedAs480, "formats.decode"),
        (CASTS, formats.InfinityIsDeclaredAndNotKept, "formats.overflow-as-declared"),
        (PRODUCT, formats.PairsSaturate, "quantization.integer-products"),
        (FLOAT_PRODUCT, formats.ProductsKnowOneFormat, "formats.products"),
        (PACKED, formats.NibblesHaveNoSign, "formats.packing"),
    ],
)
def test_coded_calls_with_a_broken_rule_name_its_clause(call: Any, framework: Any, name: str) -> None:
    assert clause(CodedCalls((call,)), framework) == name


class _ReadsRowByRow(ReferenceQuantizers):
    """Values are read from memory in order, whatever their strides say."""

    def quantize(self, name: str, values: Array) -> Quantized:
        flat = values.base.reshape(-1) if values.base is not None else values.ravel(order="K")
        return super().quantize(name, flat[: values.size].reshape(values.shape))


@pytest.mark.parametrize("layout", ["columns", "strided"])
def test_coded_calls_of_another_layout_hold_unless_strides_are_ignored(layout: Layout) -> None:
    for call in (MATRIX, FAKE, CAST, PRODUCT, PACKED):
        assert clause(CodedCalls((call,), layout)) is None
    broken = with_parts(quantizers_class=_ReadsRowByRow)
    assert clause(CodedCalls((MATRIX,)), broken) is None
    assert clause(CodedCalls((MATRIX,), layout), broken) is not None


def test_coded_calls_of_a_cast_in_the_order_of_memory_fail_in_columns() -> None:
    assert clause(CodedCalls((CASTS,)), formats.CastsInTheOrderOfMemory) is None
    assert clause(CodedCalls((CASTS,), "columns"), formats.CastsInTheOrderOfMemory) == "formats.round-to-nearest"


class _RemembersRanges(ReferenceQuantizers):
    """A range takes in those of all calls before."""

    amax: list[float]

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        self.amax.append(float(np.abs(values).max()))
        return -np.full_like(values, max(self.amax)), np.full_like(values, max(self.amax))


def test_coded_calls_that_depend_on_earlier_ones_fail() -> None:
    larger = QuantizerCall("int8-row", Matrix(3, 5, (9,), 0, "one", 1))
    smaller = QuantizerCall("int8-tensor", Matrix(3, 5, (0,), 0, "one", 1))
    broken = type("Remembers", (_RemembersRanges,), {"amax": []})
    assert clause(CodedCalls((smaller, larger)), with_parts(quantizers_class=broken)) == "laws.codes"


def case(technique: str, *verbs: QuantizedVerb, layers: int = 1, skip: tuple[str, ...] = ()) -> QuantizedCase:
    body: list[Layer] = [Dense(5), Activation("tanh")] * layers
    model = Model("drawn", (*body, Heads((Head("output", 3),))), (8,), (("output", "squared_error"),))
    return QuantizedCase(technique, model, skip, 0, (4, 3), verbs, 7)


class _PredictsWithoutBias(ReferenceQuantizedModel):
    def predict(self, inputs: Array) -> dict[str, Array]:
        stored = self.stored
        self.stored = {name: v * 0.0 if name.endswith(".bias") else v for name, v in stored.items()}
        predicted = super().predict(inputs)
        self.stored = stored
        return predicted


class _RoundsWeightsThatStay(ReferenceQuantizedModel):
    def _float(self, name: str, inputs: Array, weights: Any) -> Array:
        short = {**weights, name: weights[name].astype(np.float16).astype(np.float32)}
        return super()._float(name, inputs, short)


class _DropsOutliers(ReferenceQuantizedModel):
    """What comes in by a column of outliers is lost."""

    def beside(self, wide: Array, weight: Quantized) -> Array:
        return super().beside(np.zeros_like(wide), weight)


@pytest.mark.parametrize(
    ("drawn", "framework", "name"),
    [
        (
            case("weight-int8", layers=6, skip=("0.weight", "2.weight")),
            quantization.SkipsOnlyTheFirst,
            "only-what-was-asked",
        ),
        (case("dynamic-int8", RunLayers(300, 1)), quantization.RowsShareARange, "linear-arithmetic"),
        (case("weight-int4", SaveAndLoad("other")), formats.OddRowOfInt4IsLostInALoad, "survives-saving"),
        (case("weight-int8", RunLayers(3, 1), skip=("0.weight",)), _RoundsWeightsThatStay, "linear-arithmetic"),
        (case("weight-int8"), quantization.OneScaleForAllColumns, "weights-as-declared"),
        (case("dynamic-int8", PredictBatch(1, 3), PredictBatch(1, -6)), quantization.RangeOnlyGrows, "dynamic-scale"),
        (case("static-int8"), quantization.LastBatchDecides, "calibrated-range"),
        (case("load-int8", RunLayers(3, 3)), _DropsOutliers, "linear-arithmetic"),
        (case("weight-int4", PredictBatch(3)), _PredictsWithoutBias, "linear-arithmetic"),
    ],
)
def test_quantized_case_with_a_broken_model_names_its_clause(drawn: QuantizedCase, framework: Any, name: str) -> None:
    if issubclass(framework, ReferenceQuantizedModel):
        framework = with_parts(quantized_model_class=framework)
    assert clause(drawn) is None
    assert clause(drawn, framework) == f"quantization.{name}"


class _OverlooksNan(ReferenceDelayedProduct):
    def largest(self, values: Array) -> float:
        return float(np.nanmax(np.abs(values)))


class _ClipsMost(ReferenceDelayedProduct):
    """Values are cast by a small share of the scale that is remembered, so that they are clipped."""

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        return super().cast(values, operand, 2.0**-8 * scale)


SPOILT_STEP = DelayedStep(((0, 0), (1, 0)), special=np.nan)
LONG = tuple(DelayedStep(((power, power),)) for power in [6] + [-3] * 18)
ZERO, TWO = DelayedStep(((0, 0),)), DelayedStep(((2, 2),))


@pytest.mark.parametrize(
    ("history", "micro_batches", "steps", "broken", "text"),
    [
        (18, 1, LONG, formats.HistoryOfSixteen, ""),
        (3, 2, (SPOILT_STEP, SPOILT_STEP), with_parts(delayed_class=_OverlooksNan), ""),
        (3, 1, (ZERO, DelayedStep(((2, 2),), predicts=True)), formats.EvaluationIsRemembered, ""),
        (3, 1, (TWO, ZERO), with_parts(delayed_class=_ClipsMost), "output"),
    ],
    ids=["long-history", "not-a-number", "prediction", "output"],
)
def test_delayed_case_with_a_broken_scale_fails(
    history: int, micro_batches: int, steps: tuple[DelayedStep, ...], broken: Any, text: str
) -> None:
    drawn = DelayedCase((3, 7, 2), history, micro_batches, 0, steps, 1)
    assert failure(drawn) is None
    assert failure(drawn, broken).text.startswith(text)


QAT_MODEL = Model(
    "aware", (Dense(5), Activation("relu"), Heads((Head("output", 3),))), (8,), (("output", "squared_error"),)
)
TRAIN_QAT, LARGE = TrainQat((4, 3), (0, 1)), TrainQat((5, 2), (3, 2))


def qat_failure(framework: Any, *verbs: QatVerb, freeze: int | None = None, **fields: Any) -> Any:
    return failure(QatCase(QAT_MODEL, freeze, 2, (TRAIN_QAT, *verbs), 7, **fields), framework)


class _ConvertsOnce(ReferenceTrainer):
    def convert(self) -> ReferenceQuantizedModel:
        if not hasattr(self, "_model"):
            self._model = super().convert()
        return self._model


class _ConvertsTheAverage(ReferenceTrainer):
    """Conversion takes the average in the place of the weights."""

    def convert(self) -> ReferenceQuantizedModel:
        weights = {name: self.read_average(name).astype(np.float32) for name in self.averages} or self.parameters()
        return self.quantized_model_class(
            self.qat_layers().rule.linear, self.model, weights, known=self.observe_ranges()
        )


class _LoadsOverItself(ReferenceTrainer):
    """A load into the run that was saved forgets its ranges."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.qat is not None:
            self.statistics |= self.qat.initial_statistics(self.model)


class _EndsLater(ReferenceQuantizedModel):
    """What comes out of a layer is rounded to codes, and not clipped."""

    def requantize(self, name: str, result: Array, rule: QuantRule) -> Array:
        outputs = self.calibrated_ranges()[name].outputs
        return np.asarray(np.rint(result / outputs.scale) * outputs.scale, np.float32)


AVERAGED = with_parts(trainer_class=_ConvertsTheAverage)
ENDS_LATER = with_parts(trainer_class=type("Ending", (ReferenceTrainer,), {"quantized_model_class": _EndsLater}))
CONVERTS, RANGES = "quantization.convert-is-faithful", "quantization.ranges-follow"
SAVES = "quantization.aware-survives-saving"


@pytest.mark.parametrize(
    ("framework", "verbs", "fields", "hidden", "clause"),
    [
        (quantization.AverageStartsAtOne, (), {}, None, RANGES),
        (quantization.WidestRangeStays, (LARGE, TRAIN_QAT), {}, None, RANGES),
        (quantization.PredictionsAreObserved, (PredictQat(3, 4),), {}, None, "quantization.observers-hold-still"),
        (quantization.ConvertsByAnotherScale, (Convert(2),), {}, None, CONVERTS),
        (quantization.ConvertedClipsElsewhere, (LARGE, Convert(33)), {}, None, CONVERTS),
        (with_parts(trainer_class=_ConvertsOnce), (Convert(2), LARGE, Convert(2)), {}, None, CONVERTS),
        (quantization.RangesAreNotLoaded, (LARGE, Reload("fresh")), {}, None, SAVES),
        (with_parts(trainer_class=_LoadsOverItself), (Reload("itself"),), {}, None, SAVES),
        (AVERAGED, (LARGE, Convert(2)), {"average": 0.5}, ((LARGE, Convert(2)), {}), CONVERTS),
        (quantization.NeverFrozen, (LARGE,), {"freeze": 1}, ((LARGE,), {}), RANGES),
        (
            formats.SkippedUpdatesFreezeRanges,
            (SkipQat(), LARGE),
            {"freeze": 2, "scaled": True},
            ((LARGE,), {"freeze": 2, "scaled": True}),
            RANGES,
        ),
        (ENDS_LATER, (Convert(33, beyond=True),), {}, ((Convert(33),), {}), CONVERTS),
    ],
)
def test_qat_case_with_a_fault_names_its_clause_where_it_is_shown(
    framework: Any, verbs: tuple[QatVerb, ...], fields: dict[str, Any], hidden: Any, clause: str
) -> None:
    """`hidden`: verbs and fields that do not show the fault. Codes of a converted model may end elsewhere; only results
    beyond the ranges show it."""
    assert framework is ENDS_LATER or qat_failure(ReferenceFramework, *verbs, **fields) is None
    assert qat_failure(framework, *verbs, **fields).name == clause
    if hidden is not None:
        verbs, fields = hidden
        assert qat_failure(framework, *verbs, **fields) is None
