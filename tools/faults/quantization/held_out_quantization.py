"""Held-out faults of quantization: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Quantized, QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.quantization.quantizers import ReferenceQuantizers
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault

_LANES = 16


class _TailTiesAway(ReferenceQuantizers):
    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        codes = np.array(super().codes(values, scale, zero_point, rule))
        tail = values.shape[-1] % _LANES
        if tail:
            quotient = values / scale
            away = np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)
            half = np.abs(quotient - np.trunc(quotient)) == 0.5
            clipped = np.clip(away + zero_point, rule.low, rule.high)
            codes[..., -tail:] = np.where(half, clipped, codes)[..., -tail:]
        return codes


@fault("https://github.com/microsoft/onnxruntime/pull/28606", component="quantization", clauses=("quantization.ties",))
class TailOfARowRoundsTiesAway(ReferenceFramework):
    """Quantizers take the values of a row sixteen at a time, and those that are left over at its end by another loop,
    in which a quotient half-way between two codes goes away from zero instead of to the even one."""

    quantizers_class = _TailTiesAway


class _WholeGroupsOnly(ReferenceQuantizers):
    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        lowest, highest = super().range_of(values, rule)
        if not rule.group or rule.axis is None:
            return lowest, highest
        whole = values.shape[rule.axis] // rule.group * rule.group
        if 0 < whole < values.shape[rule.axis]:
            for ends in (lowest, highest):
                along = np.moveaxis(ends, rule.axis, 0)
                along[whole:] = along[whole - 1]
        return lowest, highest


@fault(
    "https://github.com/vllm-project/vllm-ascend/pull/9159",
    component="quantization",
    clauses=("quantization.range-follows-data",),
)
class ShortLastGroupTakesTheScaleBeforeIt(ReferenceFramework):
    """The quantizer by groups has a range for each whole group alone: a shorter last group takes the range of the group
    before it, and its values beyond that are clipped."""

    quantizers_class = _WholeGroupsOnly


_SAMPLES = 64
"""Samples of a batch that calibration looks at."""


class _FirstSamples(ReferenceQuantizedModel):
    """Calibration looks at the first samples of each batch."""

    def observed(
        self, weights: Mapping[str, Array], batches: Sequence[Array], quantized: Collection[str]
    ) -> dict[str, Array]:
        return super().observed(weights, [batch[:_SAMPLES] for batch in batches], quantized)


@fault(
    "https://github.com/apache/mxnet/pull/21008", component="quantization", clauses=("quantization.calibrated-range",)
)
class CalibrationSeesFirstSamples(ReferenceFramework):
    """Calibration of static quantization looks at the first 64 samples of each batch, and at none that comes after
    them."""

    quantized_model_class = _FirstSamples


class _RangesByShape(ReferenceQuantizedModel):
    """Keeps the ranges of inputs that it has computed, by layer and shape."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._ranges_by_shape: dict[tuple[str, tuple[int, ...]], tuple[Array, Array]] = {}
        super().__init__(*args, **named)

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        key = name, inputs.shape
        if key not in self._ranges_by_shape:
            self._ranges_by_shape[key] = super().input_range(name, inputs, rule)
        return self._ranges_by_shape[key]


@fault("", component="quantization", clauses=("quantization.linear-arithmetic",))
class DynamicRangesAreKeptByShape(ReferenceFramework):
    """A dynamically quantized layer takes the ranges of the first inputs of a shape for all later ones of it."""

    quantized_model_class = _RangesByShape


class _KeepsItsRanges(ReferenceQuantizedModel):
    def loaded(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return arrays | {name: value for name, value in self.stored.items() if name.startswith("ranges/")}


@fault("", component="quantization", clauses=("quantization.survives-saving",))
class LoadKeepsTheModelsOwnRanges(ReferenceFramework):
    """A quantized model that loads a save takes its codes and scales and keeps the activation ranges of its own
    calibration, so that it predicts something else than the model that was saved.
    """

    quantized_model_class = _KeepsItsRanges


@fault("", component="quantization", clauses=("quantization.ranges-follow",))
class ConversionFreezesRanges(ReferenceTrainer):
    """To convert the model in the middle of aware training freezes the ranges of the run that goes on."""

    _converted = False

    def convert(self) -> ReferenceQuantizedModel:
        self._converted = True
        return super().convert()

    def observes(self) -> bool:
        return not self._converted and super().observes()


class _SkipsByPart(ReferenceQuantizedModel):
    """Skips every layer that has a name to be skipped somewhere in its own."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault(
    "https://github.com/vllm-project/vllm/pull/9887",
    component="quantization",
    clauses=("quantization.only-what-was-asked",),
)
class SkipsNamesThatContainTheName(ReferenceFramework):
    """A dense layer is left unquantized where its name merely contains a name that was to be left out, as 10.weight
    contains 0.weight."""

    quantized_model_class = _SkipsByPart


class _SharesRanges(ReferenceQuantizedModel):
    """Inputs whose rows share ranges where there are many of them."""

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        scale, zero = super().input_range(name, inputs, rule)
        if self._rule.ranges == "call" and len(inputs) > 512:
            starts = np.arange(0, len(scale), 16)
            sizes = np.diff(np.append(starts, len(scale)))
            scale = np.repeat(np.maximum.reduceat(scale, starts, axis=0), sizes, axis=0)
        return scale, zero


@fault("", component="quantization", clauses=("quantization.linear-arithmetic",))
class ManyRowsShareRanges(ReferenceFramework):
    """In dynamic quantization of more than 512 rows at once, each 16 consecutive rows share the scale of the widest of
    them."""

    quantized_model_class = _SharesRanges


_ROWS = 1024


class _FirstRows(ReferenceQuantizedModel):
    """A model whose ranges are those of the first rows."""

    def ranges(self, seen: Sequence[tuple[Array, Array]]) -> Array:
        first_rows: list[tuple[Array, Array]] = []
        left = _ROWS
        for given, made in seen:
            if left > 0:
                first_rows.append((given[:left], made[:left]))
                left -= len(given)
        return super().ranges(first_rows)


@fault(
    "https://github.com/rajveer43/VeloxQuant-MLX/issues/68",
    component="quantization",
    clauses=("quantization.calibrated-range",),
)
class CalibrationStopsAfterRows(ReferenceFramework):
    """Calibration looks at the first 1,024 rows that each layer is shown, and silently drops what comes after them."""

    quantized_model_class = _FirstRows


class _ReadsAsItLies(ReferenceQuantizers):
    """Quantizers that read memory from its beginning to its end."""

    def quantize(self, name: str, values: Array) -> Quantized:
        return super().quantize(name, np.ravel(values, order="K").reshape(values.shape))


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1342",
    component="quantization",
    clauses=("quantization.codes-as-declared",),
)
class TransposedMatricesAreMisread(ReferenceFramework):
    """A matrix that lies in memory column by column, such as a transposed one, is quantized as if it lay there row by
    row.
    """

    quantizers_class = _ReadsAsItLies
