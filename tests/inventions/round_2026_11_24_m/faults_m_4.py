"""Faults of ranks, quantization and formats of eight bits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import Quantized
from frameworks.reference import ReferenceFramework
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_ROWS = 1024


@fault("https://github.com/deepspeedai/DeepSpeed/issues/2768", clause="accumulation.keeps-precision", kind="real")
class ShardedGradientsAddUpLow(ReferenceTrainer):
    """Where gradients are sharded over ranks, a rank adds a window's micro-batches up in the format of the model's
    weights, which is low at O2 and O3.
    """

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        held, ranks = self.window.gradients.get(name), self.recipe.ranks
        if held is None or self.window.unscaled or ranks is None or "gradient" not in ranks.sharded:
            super().accumulate_gradient(name, gradient)
            return
        self.window.gradients[name] = self.rounding.round(held + gradient, self.formats[name])


class _CountsCopies(ReferenceCompany):
    """Ranks that add up the squares of what they hold, copies included."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        shards = self.ranks.shards
        if shards == 1:
            return super().norm(rank, names)
        squares = 0.0
        for name in names:
            whole = self.gathered(name, [held[name] for held in self.windows])
            copies = shards if len(np.atleast_1d(whole)) < shards else 1
            squares += copies * float(np.vdot(whole, whole))
        return float(self.ops.rounding.round(np.sqrt(np.asarray(squares)), "float32"))


@fault("https://github.com/NVIDIA-NeMo/RL/pull/3788", clause="sharding.global-clip", kind="real")
class SmallParametersCountForEveryRank(ReferenceFramework):
    """At sharded levels, the gradient of a parameter with fewer rows than there are shards counts in the global norm
    once for each of the ranks that share a copy.
    """

    company_class = _CountsCopies


class _StartsTheAverageAnew(ReferenceCompany):
    """Ranks that keep no average of another number of ranks."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.recipe.average is not None and saved_count(path / COUNT) != self.count:
            for trainer in self.trainers:
                trainer.averages = dict(trainer.masters)


@fault(
    "https://github.com/hao-ai-lab/FastVideo/pull/1440",
    clause="sharding.resumes-in-another-size",
    kind="real",
)
class AverageOfAnotherSizeIsDropped(ReferenceFramework):
    """A run that goes on with another number of ranks than the one that was saved drops the saved moving average, and
    has the restored weights in its place.
    """

    company_class = _StartsTheAverageAnew


class _SkipsByPart(ReferenceQuantizedModel):
    """A model whose layers are left out by a part of their names."""

    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault("https://github.com/huggingface/transformers/pull/47990", clause="quantization.only-what-was-asked", kind="real")
class LayersLeftOutByPartOfAName(ReferenceFramework):
    """A layer stays as it was if its name has the name of one that was to be left out within it: "1.weight" leaves out
    "11.weight" too.
    """

    quantized_model_class = _SkipsByPart


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


@fault("https://github.com/rajveer43/VeloxQuant-MLX/issues/68", clause="quantization.calibrated-range", kind="real")
class CalibrationStopsAfterRows(ReferenceFramework):
    """Calibration looks at the first 1,024 rows that each layer is shown, and silently drops what comes after them."""

    quantized_model_class = _FirstRows


class _ReadsAsItLies(ReferenceQuantizers):
    """Quantizers that read memory from its beginning to its end."""

    def quantize(self, name: str, values: Array) -> Quantized:
        return super().quantize(name, np.ravel(values, order="K").reshape(values.shape))


@fault(
    "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1342",
    clause="quantization.round-trip",
    kind="real",
)
class TransposedMatricesAreMisread(ReferenceFramework):
    """A matrix that lies in memory column by column, such as a transposed one, is quantized as if it lay there row by
    row.
    """

    quantizers_class = _ReadsAsItLies


class _ComparesInTurn(ReferenceDelayedProduct):
    """A product whose largest value is found by comparisons."""

    def largest_of(self, maxima: Sequence[float]) -> float:
        return max(maxima)


@fault("", clause="formats.delayed-scaling", kind="invented")
class LaterNaNIsOverlooked(ReferenceFramework):
    """In a step of several micro-batches, NaN in one that is not the first is overlooked: what is remembered of the
    step is the largest value of the others, and the scale follows it.
    """

    delayed_class = _ComparesInTurn
