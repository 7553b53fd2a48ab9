"""Held-out faults of quantization: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Quantized, QuantRule, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.eight_bit_state import EightBitMoments, EightBitState, Moments
from frameworks.reference.forward import Forward
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.trainer import ReferenceTrainer
from tests.faults import fault


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


@fault("", component="quantization", clauses=("quantization.dynamic-scale",))
class ManyRowsShareRanges(ReferenceFramework):
    """In dynamic quantization of more than 512 rows at once, each 16 consecutive rows share the scale of the widest of
    them."""

    quantized_model_class = _SharesRanges


@fault("", component="quantization", clauses=("quantization.ranges-follow",))
class FreezeCountsSkips(ReferenceTrainer):
    """Ranges of aware training freeze after so many windows have ended, skipped ones included, instead of after so
    many applied updates.
    """

    attempts = 0

    def empty_accumulator(self) -> None:
        super().empty_accumulator()
        self.attempts += 1

    def observes(self) -> bool:
        aware = self.recipe.quantization
        frozen = aware is not None and aware.freeze is not None and self.attempts >= aware.freeze
        return Forward.observes(self) and not frozen

    def save_state(self) -> Arrays:
        return super().save_state() | {"attempts": np.array(self.attempts)}

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.attempts = int(arrays["attempts"])


class _Growing(EightBitMoments):
    """Moments whose blocks keep the largest magnitude that they ever had."""

    def __setitem__(self, name: str, moment: Array) -> None:
        if name not in self.codes:
            super().__setitem__(name, moment)
            return
        blocks = self.state.blocks(moment.ravel())
        largest = np.maximum(self.state.largest(blocks), self.largest[name])
        divisors = np.where(largest > 0, largest, 1.0).astype(np.float64)
        codes = self.state.nearest(blocks / divisors[:, None], self.state.values(self._slot))
        self.codes[name] = codes.ravel()[: moment.size].reshape(moment.shape)
        self.largest[name] = largest


@fault("", component="optimizer state", clauses=("quantization.adam8-encoding",))
class LargestMagnitudeNeverFalls(ReferenceTrainer):
    """The largest magnitude that a block of 8-bit moments is encoded by never falls.

    A block whose moments have become smaller is encoded in units of the largest that it ever had.
    """

    def moments(self, slot: str, parts: Mapping[str, Arrays]) -> Moments:
        made = super().moments(slot, parts)
        if not isinstance(made, EightBitMoments):
            return made
        return _Growing(made.state, slot, made.plain, made.codes, made.largest)


class _SkipsByPart(ReferenceQuantizedModel):
    """A model whose layers are left out by a part of their names."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault(
    "https://github.com/huggingface/transformers/pull/47990",
    component="quantization",
    clauses=("quantization.only-what-was-asked",),
)
class LayersLeftOutByPartOfAName(ReferenceFramework):
    """A layer stays as it was if its name has the name of one that was to be left out within it: "1.weight" leaves out
    "11.weight" too.
    """

    quantized_model_class = _SkipsByPart


_ROWS = 1024


class _FirstRows(ReferenceQuantizedModel):
    """A model whose ranges are those of the first rows."""

    def ranges(self, seen: Sequence[tuple[Array, Array]]) -> Array:
        kept: list[tuple[Array, Array]] = []
        left = _ROWS
        for given, made in seen:
            if left > 0:
                kept.append((given[:left], made[:left]))
                left -= len(given)
        return super().ranges(kept)


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
    clauses=("quantization.round-trip",),
)
class TransposedMatricesAreMisread(ReferenceFramework):
    """A matrix that lies in memory column by column, such as a transposed one, is quantized as if it lay there row by
    row.
    """

    quantizers_class = _ReadsAsItLies


@fault("", component="quantization", clauses=("quantization.aware-values",))
class RangesFreezeBySkippedUpdatesToo(ReferenceTrainer):
    """In aware training the number of updates after which ranges stay as they are counts the updates that an overflow
    skipped as well as the applied ones."""

    skipped = 0

    def _step(self, rate: float) -> bool:
        skips = super()._step(rate)
        self.skipped += skips
        return skips

    def observes(self) -> bool:
        aware = self.recipe.quantization
        frozen = aware is not None and aware.freeze is not None and self.steps + self.skipped >= aware.freeze
        return super().observes() and not frozen

    def save_state(self) -> Arrays:
        return super().save_state() | {"skipped": np.array(self.skipped)}

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.skipped = int(arrays["skipped"])


class _SkipsByPart(ReferenceQuantizedModel):
    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault(
    "https://github.com/vllm-project/vllm/pull/9887",
    component="quantization",
    clauses=("quantization.only-what-was-asked",),
)
class SkipsLayersWhoseNamesContainTheName(ReferenceFramework):
    """A layer is left out of post-training quantization if its name contains one that was to be left out, so that
    leaving out layer 4 leaves out layer 14 too."""

    quantized_model_class = _SkipsByPart


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


_COLUMNS = 1024
"""Columns of a row that a range is taken from."""


class _RangeOfFirstColumns(ReferenceQuantizers):
    """A row's range is that of its first columns."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        rows = rule.axis == 1 and not rule.group
        return super().range_of(values[:, :_COLUMNS] if rows else values, rule)


@fault("", component="quantization", clauses=("quantization.range-follows-data",))
class RowsHaveTheRangeOfTheirFirstColumns(ReferenceFramework):
    """The quantizer of rows takes a row's range from its first 1,024 columns alone, and clips what is larger behind
    them."""

    quantizers_class = _RangeOfFirstColumns


@fault("", component="quantization", clauses=("quantization.aware-values",))
class SkippedUpdatesCountForFreezing(ReferenceTrainer):
    """Ranges of aware training freeze after so many updates that were tried since the start or a load, added to those
    applied before it: an update that an overflow skipped counts too."""

    _tried = 0

    def apply(self) -> Update:
        update = super().apply()
        self._tried += 1
        return update

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self._tried = self.steps

    def observes(self) -> bool:
        aware = self.recipe.quantization
        frozen = aware is not None and aware.freeze is not None and self._tried >= aware.freeze
        return not self._replaying and not frozen


class _LastGroupIsFilledUp(ReferenceQuantizers):
    """A last group that is short is filled up with what the memory still holds of the group before."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        lowest, highest = super().range_of(values, rule)
        if not rule.group or rule.axis is None:
            return lowest, highest
        length = values.shape[rule.axis]
        short = length % rule.group
        if not short or length < rule.group:
            return lowest, highest
        seen = np.moveaxis(values, rule.axis, 0)[length - rule.group :]
        lowest, highest = lowest.copy(), highest.copy()
        np.moveaxis(lowest, rule.axis, 0)[length - short :] = seen.min(axis=0)
        np.moveaxis(highest, rule.axis, 0)[length - short :] = seen.max(axis=0)
        return lowest, highest


class _ModelOfFilledUpGroups(ReferenceQuantizedModel):
    """A model whose weights have such groups."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        self._quantizers = _LastGroupIsFilledUp()
        return super().chosen(skip)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    component="quantization",
    clauses=("quantization.range-follows-data",),
)
class ShortGroupTakesStaleValues(ReferenceFramework):
    """In four bits the scale of a last group that is shorter follows values of the group before it too."""

    quantizers_class = _LastGroupIsFilledUp
    quantized_model_class = _ModelOfFilledUpGroups


class _RangesByShape(ReferenceQuantizedModel):
    """Keeps the ranges of inputs that it has computed, by layer and shape."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self._kept_ranges: dict[tuple[str, tuple[int, ...]], tuple[Array, Array]] = {}
        super().__init__(*args, **named)

    def input_range(self, name: str, inputs: Array, rule: QuantRule) -> tuple[Array, Array]:
        key = name, inputs.shape
        if key not in self._kept_ranges:
            self._kept_ranges[key] = super().input_range(name, inputs, rule)
        return self._kept_ranges[key]


@fault("", component="quantization", clauses=("quantization.dynamic-scale",))
class DynamicRangesAreKeptByShape(ReferenceFramework):
    """A dynamically quantized layer takes the ranges of the first inputs of a shape for all later ones of it."""

    quantized_model_class = _RangesByShape


class _SkipsByPartsOfNames(ReferenceQuantizedModel):
    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in super().chosen(()) if not any(part in name for part in skip)]


@fault(
    "https://github.com/sgl-project/sglang/pull/23467",
    component="quantization",
    clauses=("quantization.only-what-was-asked",),
)
class SkipsByPartsOfNames(ReferenceFramework):
    """A layer is left out of quantization if its name contains one of the names that were to be left out.

    To leave out layer 2 leaves layer 12 in floating point too.
    """

    quantized_model_class = _SkipsByPartsOfNames


class _ShortBlockTakesItsNeighbours(EightBitState):
    short = False

    def encode(self, slot: str, moment: Array) -> tuple[Array, Array]:
        self.short = moment.size % self.optimizer.block != 0
        return super().encode(slot, moment)

    def largest(self, blocks: Array) -> Array:
        found = super().largest(blocks)
        if self.short and len(found) > 1:
            found[-1] = found[-2]
        return found


@fault("", component="quantization", clauses=("quantization.adam8-encoding",))
class ShortBlockTakesItsNeighbours(ReferenceTrainer):
    """Of 8-bit moments, a last block that is not full is encoded by the largest magnitude of the block before.

    Its moments are clipped where they are larger, and coarse where they are smaller.
    """

    eight_bit_class = _ShortBlockTakesItsNeighbours


class _StalePadding(EightBitState):
    def blocks(self, flat: Array) -> Array:
        short = -len(flat) % self.optimizer.block
        return np.append(flat, np.resize(flat, short)).reshape(-1, self.optimizer.block)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    component="quantization",
    clauses=("quantization.adam8-encoding",),
)
class LastBlockIsFilledWithOldValues(ReferenceTrainer):
    """The last block of a parameter whose size is no multiple of the block is filled up with values that lie in
    memory, which count in its largest magnitude.
    """

    eight_bit_class = _StalePadding


class _KeepsItsRanges(ReferenceQuantizedModel):
    def loaded(self, arrays: dict[str, Array]) -> dict[str, Array]:
        return arrays | {name: value for name, value in self.stored.items() if name.startswith("ranges/")}


@fault("", component="quantization", clauses=("quantization.survives-saving",))
class LoadKeepsTheModelsOwnRanges(ReferenceFramework):
    """A quantized model that loads a save takes its codes and scales and keeps the activation ranges of its own
    calibration, so that it predicts something else than the model that was saved.
    """

    quantized_model_class = _KeepsItsRanges


class _WholeEnds(ReferenceQuantizedModel):
    """Cuts the ends of calibrated ranges off to whole numbers."""

    def code_range(self, batches: Sequence[Array], rule: QuantRule | None) -> tuple[float, float]:
        values = np.concatenate([batch.reshape(-1) for batch in batches])
        lowest, highest = np.trunc(values.min()), np.trunc(values.max())
        if rule is None or lowest == highest:
            return super().code_range(batches, rule)
        return super().code_range([np.array([lowest, highest])], rule)


@fault(
    "https://github.com/pytorch/pytorch/issues/83672",
    component="quantization",
    clauses=("quantization.calibrated-range",),
)
class CalibrationCutsEndsOff(ReferenceFramework):
    """Calibration converts the lowest and the highest value to integers, so that a range from -0.7 to 3.9 becomes that
    from 0 to 3 and values beyond it are clipped."""

    quantized_model_class = _WholeEnds


class _StaleBlocks(EightBitState):
    """The last block is filled up with what the block before it left in the buffer."""

    def blocks(self, flat: Array) -> Array:
        block = self.optimizer.block
        short, whole = -len(flat) % block, len(flat) // block * block
        if not (short and whole):
            return super().blocks(flat)
        return np.append(flat, flat[whole - short : whole]).reshape(-1, block)


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1884",
    component="quantization",
    clauses=("quantization.adam8-encoding",),
)
class LastBlockTakesForeignMagnitudes(ReferenceTrainer):
    """The last block of a moment of eight bits, where it is not full, takes entries of the block before it into its
    largest magnitude, so that its own entries get codes that are too coarse."""

    eight_bit_class = _StaleBlocks


@fault("", component="quantization", clauses=("quantization.ranges-follow",))
class ConversionFreezesRanges(ReferenceTrainer):
    """To convert the model in the middle of aware training freezes the ranges of the run that goes on."""

    _converted = False

    def convert(self) -> ReferenceQuantizedModel:
        self._converted = True
        return super().convert()

    def observes(self) -> bool:
        return not self._converted and super().observes()
