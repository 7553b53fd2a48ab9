"""Faults of ranks, number formats, quantizers and training that is aware of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import QuantRule, Update
from frameworks.reference import ReferenceFramework
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.formats import ReferenceFormats
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_SAMPLES = 64
"""Samples of a batch that calibration looks at."""
_COLUMNS = 1024
"""Columns of a row that a range is taken from."""


class _CountsSmallOnes(ReferenceCompany):
    """The norm has the gradients of small parameters as often as there are shards."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        if not self.sharded("gradient"):
            return super().norm(rank, names)
        shards = self.ranks.shards
        whole = {name: self.gathered(name, [held[name] for held in self.windows]) for name in names}
        counted = {
            name: gradient * np.sqrt(shards) if len(np.atleast_1d(gradient)) < shards else gradient
            for name, gradient in whole.items()
        }
        return ReferenceTrainer.gradient_norm(self.first, counted)


@fault("https://github.com/NVIDIA-NeMo/RL/pull/3788", clause="sharding.global-clip", kind="real")
class SmallParametersCountOnEveryShard(ReferenceFramework):
    """Where gradients are sharded, the global norm counts the gradient of a parameter that has fewer rows than there
    are shards once for each shard."""

    company_class = _CountsSmallOnes


class _ReducesInFloat32(ReferenceCompany):
    """Gradients are added up over ranks in float32 at most."""

    def reduced_format(self, name: str) -> str:
        return self.ranks.reduce


@fault("https://github.com/pytorch/pytorch/issues/133032", clause="sharding.equals-whole", kind="real")
class RanksReduceFloat64InFloat32(ReferenceFramework):
    """Ranks add up all gradients in float32 where no low format is asked for, those of float64 heads too."""

    company_class = _ReducesInFloat32


class _InMemoryOrder(ReferenceFormats):
    """Codes are written in the order in which the values lie in memory."""

    def encode(self, values: Array, format_name: str) -> Array:
        given = np.asarray(values)
        return super().encode(given.ravel(order="K"), format_name).reshape(given.shape)


@fault("https://github.com/pytorch/FBGEMM/pull/2919", clause="formats.round-to-nearest", kind="real")
class CastsInTheOrderOfMemory(ReferenceFramework):
    """A cast to a format of eight bits reads the values in the order in which they lie in memory, and writes the
    codes row by row, so that those of a transposed matrix come out at other places."""

    formats_class = _InMemoryOrder


class _FirstSamples(ReferenceQuantizedModel):
    """Calibration looks at the first samples of each batch."""

    def observed(
        self, weights: Mapping[str, Array], batches: Sequence[Array], quantized: Collection[str]
    ) -> dict[str, Array]:
        return super().observed(weights, [batch[:_SAMPLES] for batch in batches], quantized)


@fault("https://github.com/apache/mxnet/pull/21008", clause="quantization.calibrated-range", kind="real")
class CalibrationSeesFirstSamples(ReferenceFramework):
    """Calibration of static quantization looks at the first 64 samples of each batch, and at none that comes after
    them."""

    quantized_model_class = _FirstSamples


class _RangeOfFirstColumns(ReferenceQuantizers):
    """A row's range is that of its first columns."""

    def range_of(self, values: Array, rule: QuantRule) -> tuple[Array, Array]:
        rows = rule.axis == 1 and not rule.group
        return super().range_of(values[:, :_COLUMNS] if rows else values, rule)


@fault("", clause="quantization.range-follows-data", kind="invented")
class RowsHaveTheRangeOfTheirFirstColumns(ReferenceFramework):
    """The quantizer of rows takes a row's range from its first 1,024 columns alone, and clips what is larger behind
    them."""

    quantizers_class = _RangeOfFirstColumns


class _NeverFalls(ReferenceDelayedProduct):
    """A history of one value keeps the larger one."""

    def shifted(self, maxima: Array, newest: float) -> Array:
        return super().shifted(maxima, max(newest, float(maxima[0])) if len(maxima) == 1 else newest)


@fault("", clause="formats.delayed-scaling", kind="invented")
class HistoryOfOneNeverFalls(ReferenceFramework):
    """Delayed scaling with a history of one step keeps the largest value of all steps so far in the place of the last
    step's."""

    delayed_class = _NeverFalls


@fault("", clause="quantization.ranges-follow", kind="invented")
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


@fault("", clause="quantization.convert-is-faithful", kind="invented")
class ConvertsTheAverage(ReferenceTrainer):
    """Where a recipe of aware training keeps a moving average of the weights, conversion takes the average instead of
    the weights that training computed with."""

    def convert(self) -> ReferenceQuantizedModel:
        if self.recipe.average is None:
            return super().convert()
        layers = self.aware_layers()
        weights = {name: self.averaged(name).astype(np.float32) for name in self.averages}
        return self.quantized_model_class(layers.rule.linear, self.model, weights, known=self.observed())
