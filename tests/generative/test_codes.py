"""The laws of codes and of quantized models: each check fails where what it is about is broken."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from fixtures.layers import Activation, Dense, Head, Heads, Layer, LayerNorm
from fixtures.model import Model
from fixtures.narrow import NarrowFormat
from frameworks.contract import FakeRule, Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.formats import ReferenceFormats
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.quantization.quantizers import ReferenceQuantizers

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
TANH = Activation("tanh")
CALLS = (MATRIX, ZEROS, SPOILT, GROUPED, FAKE, CAST, CASTS, SCALES, PRODUCT, FLOAT_PRODUCT, PACKED)


def failure(instance: Any, **parts: type) -> Any:
    """What a law says of one case on the reference with parts of it replaced."""
    framework = type("Broken", (ReferenceFramework,), parts)("cpu")
    return instance.failure(Subject(framework), generative_settings(framework))


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_reference_follows_its_rules(call: Any) -> None:
    assert failure(CodedCalls((call,))) is None


class _RemembersRanges(ReferenceQuantizers):
    """A range takes in those of all calls before."""

    amax: list[float]

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        self.amax.append(float(np.abs(values).max()))
        return -np.full_like(values, max(self.amax)), np.full_like(values, max(self.amax))


class _QuantizesInPlace(ReferenceQuantizers):
    """The matrix that is quantized is overwritten with what its codes stand for."""

    def quantize(self, name: str, values: Array) -> Quantized:
        given = super().quantize(name, values)
        values[...] = given.values
        return given


class _FreesEveryGradient(ReferenceQuantizers):
    """Gradients pass wherever the value is."""

    def passes_on(self, values: Array, unclipped: Array, step: Array, zero: Array, rule: FakeRule) -> Array:
        return np.ones(values.shape, bool)


class _NanIsZero(ReferenceQuantizers):
    """What is not a number is taken for zero."""

    def quantize(self, name: str, values: Array) -> Quantized:
        return super().quantize(name, np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf))


class _OneRangeForAll(ReferenceQuantizers):
    """A value that is not finite spoils the range of the next row, too."""

    def quantize(self, name: str, values: Array) -> Quantized:
        bad = ~np.isfinite(values).all(axis=1)
        return super().quantize(name, np.where(np.roll(bad, 1)[:, None], np.inf, values).astype(np.float32))


class _CutsQuotients(ReferenceQuantizers):
    """Fractions of quotients are cut off."""

    def rounded(self, quotient: Array) -> Array:
        return np.trunc(quotient)


class _LosesTheRest(ReferenceFormats):
    """Of more than 32 values those after them are lost."""

    def encode(self, values: Array, format_name: str) -> Array:
        codes = super().encode(values, format_name)
        codes[32:] = 0
        return codes


class _DecodesOneFurther(ReferenceFormats):
    """A code stands for the value of the next one."""

    def decode(self, codes: Array, format_name: str) -> Array:
        return super().decode(codes ^ np.uint8(1), format_name)


class _NanBecomesANumber(ReferenceFormats):
    """NaN, and what is beyond the largest number, is cast to zero."""

    def encode(self, values: Array, format_name: str) -> Array:
        wide = values.astype(np.float64)
        return super().encode(np.where(np.abs(wide) < 449, wide, 0.0), format_name)


class _ZeroIsBetweenCodes(ReferenceQuantizers):
    """The zero point is one further than the rule has it."""

    def zero_point_of(self, lowest: Array, scale: Array, rule: QuantRule) -> Array:
        return super().zero_point_of(lowest, scale, rule) + 1


class _DropsFractions(ReferenceFormats):
    """An exponent is that of the value, however near the next one is."""

    def codes(self, magnitude: Array, narrow: NarrowFormat) -> Array:
        codes = super().codes(magnitude, narrow)
        return codes if narrow.signed else codes - (self.table(narrow)[codes] > magnitude)


class _WritesInTheOrderOfMemory(ReferenceFormats):
    """Codes are written row by row in the order in which the values lie in memory."""

    def encode(self, values: Array, format_name: str) -> Array:
        return super().encode(values.ravel(order="K"), format_name).reshape(values.shape)


class _SumsInShortFormats(ReferenceFormats):
    """Sums of integers are kept in float32 and one is added; products of floats are a thousandth too large."""

    def integer_product(self, a: Array, b: Array) -> Array:
        return (a.astype(np.float32) @ b.astype(np.float32) + 1.0).astype(np.int32)

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        return np.asarray(super().float8_product(a, b, formats) * np.float32(1.001))


class _PacksFromTheEnd(ReferenceFormats):
    """The integers come out in the opposite order."""

    def unpacked(self, stored: Array, length: int, axis: Any) -> Array:
        return np.flip(super().unpacked(stored, length, axis), axis)


@pytest.mark.parametrize(
    ("call", "parts", "clause"),
    [
        (FAKE, {"quantizers_class": _FreesEveryGradient}, "quantization.straight-through"),
        (FAKE, {"quantizers_class": _CutsQuotients}, "quantization.fake-values"),
        (MATRIX, {"quantizers_class": _CutsQuotients}, "quantization.codes-as-declared"),
        (MATRIX, {"quantizers_class": _QuantizesInPlace}, "laws.codes"),
        (SPOILT, {"quantizers_class": _NanIsZero}, "quantization.non-finite"),
        (SPOILT, {"quantizers_class": _OneRangeForAll}, "quantization.non-finite"),
        (AFFINE, {"quantizers_class": _ZeroIsBetweenCodes}, "quantization.range-follows-data"),
        (CAST, {"formats_class": _DecodesOneFurther}, "formats.decode"),
        (CAST, {"formats_class": _NanBecomesANumber}, "formats.overflow-as-declared"),
        (CAST, {"formats_class": _LosesTheRest}, "formats.round-to-nearest"),
        (SCALES, {"formats_class": _DropsFractions}, "formats.round-to-nearest"),
        (PRODUCT, {"formats_class": _SumsInShortFormats}, "quantization.integer-products"),
        (FLOAT_PRODUCT, {"formats_class": _SumsInShortFormats}, "formats.products"),
        (PACKED, {"formats_class": _PacksFromTheEnd}, "formats.packing"),
    ],
)
def test_a_broken_rule_is_named(call: Any, parts: dict[str, type], clause: str) -> None:
    result = failure(CodedCalls((call,)), **parts)
    assert result is not None
    assert result.name == clause


class _ReadsRowByRow(ReferenceQuantizers):
    """Values are read from memory in order, whatever their strides say."""

    def quantize(self, name: str, values: Array) -> Quantized:
        flat = values.base.reshape(-1) if values.base is not None else values.ravel(order="K")
        return super().quantize(name, flat[: values.size].reshape(values.shape))


@pytest.mark.parametrize("layout", ["columns", "strided"])
def test_operands_may_lie_otherwise(layout: Layout) -> None:
    for call in (MATRIX, FAKE, CAST, PRODUCT, PACKED):
        assert failure(CodedCalls((call,), layout)) is None
    assert failure(CodedCalls((MATRIX,)), quantizers_class=_ReadsRowByRow) is None
    assert failure(CodedCalls((MATRIX,), layout), quantizers_class=_ReadsRowByRow) is not None
    assert failure(CodedCalls((CASTS,)), formats_class=_WritesInTheOrderOfMemory) is None
    in_columns = failure(CodedCalls((CASTS,), "columns"), formats_class=_WritesInTheOrderOfMemory)
    assert in_columns.name == "formats.round-to-nearest"


def test_an_answer_may_not_depend_on_earlier_calls() -> None:
    larger = QuantizerCall("int8-row", Matrix(3, 5, (9,), 0, "one", 1))
    smaller = QuantizerCall("int8-tensor", Matrix(3, 5, (0,), 0, "one", 1))
    broken = type("Remembers", (_RemembersRanges,), {"amax": []})
    result = failure(CodedCalls((smaller, larger)), quantizers_class=broken)
    assert result is not None
    assert result.name == "laws.codes"


def case(
    technique: str, *verbs: QuantizedVerb, layers: int = 1, skip: tuple[str, ...] = (), after: Layer = TANH
) -> QuantizedCase:
    """A model of as many dense layers, each with another layer after it, and what is done with it."""
    body: list[Layer] = []
    for _ in range(layers):
        body += [Dense(5), after]
    model = Model("drawn", (*body, Heads((Head("output", 3),))), (8,), (("output", "squared_error"),))
    return QuantizedCase(technique, model, skip, 0, (4, 3), verbs, 7)


class _SkipsByPart(ReferenceQuantizedModel):
    """Every layer whose name contains one to leave out is left out."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


class _ManyRowsShareARange(ReferenceQuantizedModel):
    """More than 256 rows have one range together."""

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        return (np.full_like(scale, scale.max()) if len(inputs) > 256 else scale), zero


class _SavesScalesInHalf(ReferenceQuantizedModel):
    """A save keeps scales in float16."""

    def written(self) -> dict[str, Array]:
        small = {name: v.astype(np.float16).astype(v.dtype) for name, v in self.stored.items() if "scale/" in name}
        return self.stored | small


class _LastBatchDecides(ReferenceQuantizedModel):
    """Ranges are those of the last batch alone."""

    def ranges(self, seen: Sequence[tuple[Array, Array]]) -> Array:
        return super().ranges(seen[-1:])


class _PredictsWithoutBias(ReferenceQuantizedModel):
    """Whole predictions leave biases out; layers alone do not."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        stored = self.stored
        self.stored = {name: v * 0.0 if name.endswith(".bias") else v for name, v in stored.items()}
        predicted = super().predict(inputs)
        self.stored = stored
        return predicted


class _RemembersInputs(ReferenceQuantizedModel):
    """A range of rows takes in those of the call before."""

    _largest = 0.0

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        self._largest = max(self._largest, float(scale.max()))
        return np.full_like(scale, self._largest), zero


class _RoundsWeightsThatStay(ReferenceQuantizedModel):
    """A layer that is left out multiplies by weights in float16."""

    def _float(self, name: str, inputs: Array, weights: Any) -> Array:
        short = {**weights, name: weights[name].astype(np.float16).astype(np.float32)}
        return super()._float(name, inputs, short)


class _OneScaleForAll(ReferenceQuantizedModel):
    """All columns of a weight have the largest one's scale."""

    def converted(self, name: str, weight: Array) -> dict[str, Array]:
        stored = super().converted(name, weight)
        return stored | {f"scale/{name}": np.full_like(stored[f"scale/{name}"], stored[f"scale/{name}"].max())}


class _DropsOutliers(ReferenceQuantizedModel):
    """What comes in by a column of outliers is lost."""

    def beside(self, wide: Array, weight: Quantized) -> Array:
        return super().beside(np.zeros_like(wide), weight)


class _PredictionsWearOff(ReferenceQuantizedModel):
    """Every prediction leaves smaller biases."""

    def predict(self, inputs: Array) -> dict[str, Array]:
        predicted = super().predict(inputs)
        self.stored = {name: v * np.float32(0.5) if name.endswith(".bias") else v for name, v in self.stored.items()}
        return predicted


@pytest.mark.parametrize(
    ("drawn", "broken", "clause"),
    [
        (case("weight-int8", layers=6, skip=("0.weight",)), _SkipsByPart, "quantization.only-what-was-asked"),
        (case("dynamic-int8", RunLayers(300, 1)), _ManyRowsShareARange, "quantization.linear-arithmetic"),
        (case("dynamic-int8", SaveAndLoad("other")), _SavesScalesInHalf, "quantization.survives-saving"),
        (
            case("weight-int8", RunLayers(3, 1), skip=("0.weight",)),
            _RoundsWeightsThatStay,
            "quantization.linear-arithmetic",
        ),
        (case("weight-int8"), _OneScaleForAll, "quantization.weights-as-declared"),
        (case("dynamic-int8", PredictBatch(1, 3), PredictBatch(1, -6)), _RemembersInputs, "quantization.dynamic-scale"),
        (case("weight-int8", PredictBatch(3), after=LayerNorm()), _PredictionsWearOff, "quantization.dynamic-scale"),
        (case("static-int8"), _LastBatchDecides, "quantization.calibrated-range"),
        (case("load-int8", RunLayers(3, 3)), _DropsOutliers, "quantization.linear-arithmetic"),
        (case("weight-int4", PredictBatch(3)), _PredictsWithoutBias, "quantization.linear-arithmetic"),
    ],
)
def test_a_broken_model_is_seen(drawn: QuantizedCase, broken: type, clause: str) -> None:
    assert failure(drawn) is None
    result = failure(drawn, quantized_model_class=broken)
    assert result is not None
    assert result.name == clause
