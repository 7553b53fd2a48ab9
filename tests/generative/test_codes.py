"""The laws of codes and of quantized models: each check fails where what it is about is broken."""

from typing import Any

import numpy as np
import pytest

from conformance.checks.subject import Subject
from conformance.search.adapter_settings import generative_settings
from conformance.search.layouts import Layout
from conformance.techniques.formats.cases import CodedCalls, FakeCall, Matrix, QuantizerCall, SpoiltCall
from conformance.techniques.formats.format_cases import CastCall, CodeProduct, Packing
from conformance.techniques.post_training.cases import (
    PredictBatch,
    QuantizedCase,
    QuantizedVerb,
    RunLayers,
    SaveAndLoad,
)
from fixtures.arrays import Array
from fixtures.layers import Activation, Dense, Head, Heads, Layer
from fixtures.model import Model
from frameworks.contract import Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.quantization.quantizers import ReferenceQuantizers
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
    """The reference with parts of it replaced."""
    return type("Broken", (ReferenceFramework,), parts)


def failure(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> Any:
    """The failure of a law over one case on a framework."""
    subject = Subject(framework("cpu"))
    return instance.failure(subject, generative_settings(subject.framework))


def clause(instance: Any, framework: type[ReferenceFramework] = ReferenceFramework) -> str | None:
    """The clause that a law over one case names, None if the case holds."""
    result = failure(instance, framework)
    return result and result.name


class _QuantizesInPlace(ReferenceQuantizers):
    """The matrix that is quantized is overwritten with what its codes stand for."""

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
    """A model of as many dense layers, each before a hyperbolic tangent, and what is done with it."""
    body: list[Layer] = [Dense(5), Activation("tanh")] * layers
    model = Model("drawn", (*body, Heads((Head("output", 3),))), (8,), (("output", "squared_error"),))
    return QuantizedCase(technique, model, skip, 0, (4, 3), verbs, 7)


class _PredictsWithoutBias(ReferenceQuantizedModel):
    """Whole predictions leave biases out; layers alone do not."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        stored = self.stored
        self.stored = {name: v * 0.0 if name.endswith(".bias") else v for name, v in stored.items()}
        predicted = super().predict(inputs)
        self.stored = stored
        return predicted


class _RoundsWeightsThatStay(ReferenceQuantizedModel):
    """A layer that is left out multiplies by weights in float16."""

    def _float(self, name: str, inputs: Array, weights: Any) -> Array:
        short = {**weights, name: weights[name].astype(np.float16).astype(np.float32)}
        return super()._float(name, inputs, short)


class _DropsOutliers(ReferenceQuantizedModel):
    """What comes in by a column of outliers is lost."""

    def beside(self, wide: Array, weight: Quantized) -> Array:
        return super().beside(np.zeros_like(wide), weight)


def with_model(model: type[ReferenceQuantizedModel]) -> type[ReferenceFramework]:
    """The reference with other quantized models."""
    return with_parts(quantized_model_class=model)


@pytest.mark.parametrize(
    ("drawn", "framework", "name"),
    [
        (
            case("weight-int8", layers=6, skip=("0.weight", "2.weight")),
            quantization.SkipsOnlyTheFirst,
            "quantization.only-what-was-asked",
        ),
        (case("dynamic-int8", RunLayers(300, 1)), quantization.RowsShareARange, "quantization.linear-arithmetic"),
        (case("weight-int4", SaveAndLoad("other")), formats.OddRowOfInt4IsLostInALoad, "quantization.survives-saving"),
        (
            case("weight-int8", RunLayers(3, 1), skip=("0.weight",)),
            with_model(_RoundsWeightsThatStay),
            "quantization.linear-arithmetic",
        ),
        (case("weight-int8"), quantization.OneScaleForAllColumns, "quantization.weights-as-declared"),
        (
            case("dynamic-int8", PredictBatch(1, 3), PredictBatch(1, -6)),
            quantization.RangeOnlyGrows,
            "quantization.dynamic-scale",
        ),
        (case("static-int8"), quantization.LastBatchDecides, "quantization.calibrated-range"),
        (case("load-int8", RunLayers(3, 3)), with_model(_DropsOutliers), "quantization.linear-arithmetic"),
        (case("weight-int4", PredictBatch(3)), with_model(_PredictsWithoutBias), "quantization.linear-arithmetic"),
    ],
)
def test_quantized_case_with_a_broken_model_names_its_clause(drawn: QuantizedCase, framework: Any, name: str) -> None:
    assert clause(drawn) is None
    assert clause(drawn, framework) == name
