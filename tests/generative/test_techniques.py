"""The laws of codes, quantized models, delayed scales and QAT: each fault fails the clause about it."""

from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.search.properties import generative_settings
from conformance.techniques import quantized_models as quantized
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
from conformance.techniques.quantized_models import Convert, PredictBatch, QatCase, QuantizedCase, SaveAndLoad, SkipQat
from fixtures.arrays import Array
from fixtures.model import Activation, Dense, Head, Heads, Layer, Model
from frameworks.contract import Operand, Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.float8 import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceQuantizers
from tools.faults.reference import formats, quantization

MATRIX = QuantizerCall("int8-row", Matrix(3, 5, (0, 4), 0, "normal", 1))
SQUARE = QuantizerCall("int8-row", Matrix(4, 4, (0, 4), 0, "normal", 1))
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
SPOILT_STEP = DelayedStep(((0, 0), (1, 0)), special=np.inf)
LONG = tuple(DelayedStep(((power, power),)) for power in [6] + [-3] * 18)
ZERO, TWO = DelayedStep(((0, 0),)), DelayedStep(((2, 2),))
QAT_MODEL = Model(
    "aware", (Dense(5), Activation("relu"), Heads((Head("output", 3),))), (8,), (("output", "squared_error"),)
)
TRAIN_QAT, LARGE = quantized.TrainQat((4, 3), (0, 1)), quantized.TrainQat((5, 2), (3, 2))


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


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_coded_calls_of_the_reference_pass(call: Any) -> None:
    assert clause(CodedCalls((call,))) is None


@pytest.mark.parametrize(
    ("call", "framework", "name"),
    [
        (FAKE, quantization.GradientEverywhere, "quantization.straight-through"),
        (FAKE, quantization.FractionsAreCutOff, "quantization.fake-values"),
        (MATRIX, quantization.FractionsAreCutOff, "quantization.codes-as-declared"),
        (MATRIX, with_parts(quantizers_class=_QuantizesInPlace), "laws.codes"),
        (SPOILT, quantization.NanIsOverlooked, "quantization.non-finite"),
        (SQUARE, quantization.RangesAlongTheOtherAxis, "quantization.range-follows-data"),
        (CAST, formats.NaNIsDecodedAs480, "formats.decode"),
        (CASTS, formats.InfinityIsDeclaredAndNotKept, "formats.overflow-as-declared"),
        (PRODUCT, formats.PairsSaturate, "quantization.integer-products"),
        (FLOAT_PRODUCT, formats.ProductsKnowOneFormat, "formats.products"),
        (PACKED, formats.NibblesHaveNoSign, "formats.packing"),
    ],
)
def test_coded_calls_with_a_broken_rule_name_its_clause(call: Any, framework: Any, name: str) -> None:
    assert clause(CodedCalls((call,)), framework) == name


def test_coded_calls_of_a_cast_in_the_order_of_memory_fail_in_columns() -> None:
    assert clause(CodedCalls((CASTS,)), formats.CastsInTheOrderOfMemory) is None
    assert clause(CodedCalls((CASTS,), "columns"), formats.CastsInTheOrderOfMemory) == "formats.round-to-nearest"


class _WidensRanges(ReferenceQuantizers):
    """A range includes those of all earlier calls."""

    amax: list[float]

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        self.amax.append(float(np.abs(values).max()))
        return -np.full_like(values, max(self.amax)), np.full_like(values, max(self.amax))


def test_coded_calls_that_depend_on_earlier_ones_fail() -> None:
    larger = QuantizerCall("int8-row", Matrix(3, 5, (9,), 0, "one", 1))
    smaller = QuantizerCall("int8-tensor", Matrix(3, 5, (0,), 0, "one", 1))
    broken = type("Widens", (_WidensRanges,), {"amax": []})
    assert clause(CodedCalls((smaller, larger)), with_parts(quantizers_class=broken)) == "laws.codes"


def case(technique: str, *verbs: quantized.QuantizedVerb, layers: int = 1, skip: tuple[str, ...] = ()) -> QuantizedCase:
    body: list[Layer] = [Dense(5), Activation("tanh")] * layers
    model = Model("drawn", (*body, Heads((Head("output", 3),))), (8,), (("output", "squared_error"),))
    return QuantizedCase(technique, model, skip, 0, (4, 3), verbs, 7)


@pytest.mark.parametrize(
    ("drawn", "framework", "name"),
    [
        (
            case("weight-int8", layers=6, skip=("0.weight", "2.weight")),
            quantization.SkipsOnlyTheFirst,
            "only-what-was-asked",
        ),
        (case("dynamic-int8", quantized.RunLayers(300, 1)), quantization.RowsShareARange, "linear-arithmetic"),
        (case("weight-int4", SaveAndLoad("other")), formats.OddRowOfInt4IsLostInALoad, "survives-saving"),
        (case("weight-int8"), quantization.OneScaleForAllColumns, "weights-as-declared"),
        (case("dynamic-int8", PredictBatch(1, 3), PredictBatch(1, -6)), quantization.RangeOnlyGrows, "dynamic-scale"),
        (case("static-int8"), quantization.LastBatchDecides, "calibrated-range"),
    ],
)
def test_quantized_case_with_a_broken_model_names_its_clause(drawn: QuantizedCase, framework: Any, name: str) -> None:
    assert clause(drawn) is None
    assert clause(drawn, framework) == f"quantization.{name}"


class _ClipsMost(ReferenceDelayedProduct):
    """Values are cast by a fraction of the stored scale, so that they saturate."""

    def cast(self, values: Array, operand: Operand, scale: float) -> Array:
        return super().cast(values, operand, 2.0**-8 * scale)


@pytest.mark.parametrize(
    ("history", "micro_batches", "steps", "broken", "text"),
    [
        (18, 1, LONG, formats.HistoryOfSixteen, ""),
        (3, 2, (SPOILT_STEP, SPOILT_STEP), formats.InfinityIsAScale, ""),
        (3, 1, (ZERO, DelayedStep(((2, 2),), predicts=True)), formats.EvaluationIsRemembered, ""),
        (3, 1, (TWO, ZERO), with_parts(delayed_class=_ClipsMost), "output"),
    ],
    ids=["long-history", "infinity", "prediction", "output"],
)
def test_delayed_case_with_a_broken_scale_fails(
    history: int, micro_batches: int, steps: tuple[DelayedStep, ...], broken: Any, text: str
) -> None:
    drawn = DelayedCase((3, 7, 2), history, micro_batches, 0, steps, 1)
    assert failure(drawn) is None
    assert failure(drawn, broken).text.startswith(text)


def qat_failure(framework: Any, *verbs: quantized.QatVerb, freeze: int | None = None, **fields: Any) -> Any:
    return failure(QatCase(QAT_MODEL, freeze, 2, (TRAIN_QAT, *verbs), 7, **fields), framework)


@pytest.mark.parametrize(
    ("framework", "verbs", "fields", "clause"),
    [
        (quantization.AverageStartsAtOne, (), {}, "ranges-follow"),
        (quantization.NeverFrozen, (LARGE,), {"freeze": 1}, "ranges-follow"),
        (formats.SkippedUpdatesFreezeRanges, (SkipQat(), LARGE), {"freeze": 2, "scaled": True}, "ranges-follow"),
        (quantization.PredictionsAreObserved, (quantized.PredictQat(3, 4),), {}, "observers-hold-still"),
        (quantization.ConvertsByAnotherScale, (Convert(2),), {}, "convert-is-faithful"),
        (quantization.ConvertedClipsElsewhere, (LARGE, Convert(33)), {}, "convert-is-faithful"),
        (quantization.RangesAreNotLoaded, (LARGE, quantized.Reload("fresh")), {}, "aware-survives-saving"),
    ],
)
def test_qat_case_with_a_fault_names_its_clause(
    framework: Any, verbs: tuple[quantized.QatVerb, ...], fields: dict[str, Any], clause: str
) -> None:
    assert qat_failure(ReferenceFramework, *verbs, **fields) is None
    assert qat_failure(framework, *verbs, **fields).name == f"quantization.{clause}"
