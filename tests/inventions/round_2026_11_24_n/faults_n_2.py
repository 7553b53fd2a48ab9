"""Faults of recomputation, scaling, scopes, offload, ranks and quantization."""

from __future__ import annotations

import shutil
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import Offload, Precision
from frameworks.contract import QuantRule
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.arithmetic import Operations
from frameworks.reference.decisions import Arrays
from frameworks.reference.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.forward import Moment
from frameworks.reference.offload import ArrayStore, DiskStore
from frameworks.reference.post_training import ReferenceQuantizedModel
from frameworks.reference.quantizers import ReferenceQuantizers
from frameworks.reference.rank_trainer import COUNT, saved_count
from frameworks.reference.ranks import ReferenceCompany
from frameworks.reference.scaler import LossScale
from frameworks.reference.tensor import Tensor
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_LANES = 16


@fault("", clause="recompute.replays-dropout", kind="invented")
class SecondBackwardDrawsNewMasks(ReferenceTrainer):
    """A recomputed segment gives its random state back to the first backward pass through it alone: where a second loss
    is differentiated by itself, its backward pass draws new dropout masks from the stream as it then is."""

    def passed(self, batch: Batch, items: int) -> tuple[float, Arrays]:
        self.replayed: list[Moment] = []
        return super().passed(batch, items)

    @contextmanager
    def _not_random(self, moment: Moment) -> Iterator[None]:
        with self.replay_buffers(), self.replay_precision(moment.scope):
            yield

    def recompute_segment(self, moment: Moment) -> AbstractContextManager[object]:
        if any(each is moment for each in self.replayed):
            return self._not_random(moment)
        self.replayed.append(moment)
        return super().recompute_segment(moment)


@fault("", clause="scaling.automaton", kind="invented")
class OverflowAtTheFloorKeepsTheCount(ReferenceTrainer):
    """An overflow while the scale is at its smallest value leaves the growth counter as it is instead of setting it to
    zero, so that the scale grows too early afterwards."""

    def next_scale(self, scaler: LossScale, finite: bool) -> LossScale:
        if scaler.dynamic and not finite and scaler.scale <= scaler.minimum:
            return scaler
        return super().next_scale(scaler, finite)


@fault("", clause="quantization.ranges-follow", kind="invented")
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


@fault("", clause="autocast.layers-honour-policy", kind="invented")
class SingleOutputIsNotCast(Operations):
    """A linear product with a bias and a weight of a single column, such as a head with one unit, is a product of a
    matrix and a vector that no precision scope knows: it runs in the wider of its operands' formats."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None or weight.shape[-1] != 1:
            return super().linear(x, weight, bias)
        with scope.opened(scope.Scope()):
            return super().linear(x, weight, bias)


@fault("", clause="laws.operations", kind="invented")
class InnerScopeInheritsUserLists(ReferenceFramework):
    """A scope that is switched on inside another one takes over the operations that the user named for the outer one,
    in addition to its own."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        outer = scope.current()
        return super().autocast(precision, enabled=enabled, wide=(*outer.wide, *wide), low=(*outer.low, *low))


@fault("", clause="autocast.scope-nests", kind="invented")
class LeavingAnEqualScopeClosesTheOuterOne(ReferenceFramework):
    """A scope that is opened inside an equal one is not opened a second time, and leaving it closes the outer one: what
    follows in the outer scope runs without any."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        wanted = scope.Scope(precision, frozenset(wide), frozenset(low)) if enabled else scope.Scope()
        return _entered(wanted)


@contextmanager
def _entered(wanted: scope.Scope) -> Iterator[None]:
    if scope.current() != wanted:
        with scope.opened(wanted):
            yield
        return
    try:
        yield
    finally:
        scope.enter(scope.Scope())


class _OneFolder(DiskStore):
    """A store whose files lie in a folder that all live stores below the same folder have together."""

    live: ClassVar[Counter[Path]] = Counter()

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "offloaded"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.live[self.folder] += 1
        self._ending = weakref.finalize(self, self._gone, self.folder)

    @classmethod
    def _gone(cls, folder: Path) -> None:
        cls.live[folder] -= 1
        if not cls.live[folder]:
            shutil.rmtree(folder, ignore_errors=True)


@fault("", clause="offload.same-bits", kind="invented")
class RunsShareTheOffloadFolder(ReferenceTrainer):
    """Runs that offload to files below the same named folder at the same time use the same files, so that a run reads
    what another one wrote last; the files go with the last of these runs."""

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to == "host" or offload.folder is None:
            return super().make_store(offload)
        return _OneFolder(offload.folder)


class _CountsSmallOnes(ReferenceCompany):
    def norm(self, rank: int, names: Sequence[str]) -> float:
        shards = self.ranks.shards
        whole = {name: self.gathered(name, [held[name] for held in self.windows]) for name in names}
        for name, gradient in whole.items():
            if len(np.atleast_1d(gradient)) < shards:
                whole[name] = gradient * np.sqrt(shards)
        return ReferenceTrainer.gradient_norm(self.first, whole)


@fault("https://github.com/NVIDIA-NeMo/RL/pull/3788", clause="sharding.global-clip", kind="real")
class SmallParametersCountOncePerRank(ReferenceFramework):
    """A parameter with fewer rows than there are shards is held whole by every rank, and its squared norm is added to
    the global one once for each of the ranks that share a copy."""

    company_class = _CountsSmallOnes


class _NewRanksBeginAnew(ReferenceCompany):
    def restore(self, path: Path) -> None:
        super().restore(path)
        for trainer in self.trainers[saved_count(path / COUNT) :]:
            trainer.draws = 0


@fault("https://github.com/TensorAuto/OpenTau/pull/180", clause="resume.random-state", kind="real")
class NewRanksBeginTheirStreamAnew(ReferenceFramework):
    """Where a run goes on with more ranks than saved it, the ranks that were not there before begin the stream of
    dropout from its start instead of going on with a saved one."""

    company_class = _NewRanksBeginAnew


class _SkipsByPart(ReferenceQuantizedModel):
    def chosen(self, skip: Collection[str]) -> list[str]:
        return [name for name in self._shapes if not any(part in name for part in skip)]


@fault("https://github.com/vllm-project/vllm/pull/9887", clause="quantization.only-what-was-asked", kind="real")
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


@fault("https://github.com/vllm-project/vllm-ascend/pull/9159", clause="quantization.range-follows-data", kind="real")
class ShortLastGroupTakesTheScaleBeforeIt(ReferenceFramework):
    """The quantizer by groups has a range for each whole group alone: a shorter last group takes the range of the group
    before it, and its values beyond that are clipped."""

    quantizers_class = _WholeGroupsOnly


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


@fault("https://github.com/microsoft/onnxruntime/pull/28606", clause="quantization.ties", kind="real")
class TailOfARowRoundsTiesAway(ReferenceFramework):
    """Quantizers take the values of a row sixteen at a time, and those that are left over at its end by another loop,
    in which a quotient half-way between two codes goes away from zero instead of to the even one."""

    quantizers_class = _TailTiesAway


class _ForgetsZeroSteps(ReferenceDelayedProduct):
    def shifted(self, maxima: Array, newest: float) -> Array:
        return super().shifted(maxima, newest) if newest != 0.0 else maxima


@fault("", clause="formats.delayed-scaling", kind="invented")
class ZeroStepsAreNotRemembered(ReferenceFramework):
    """Under delayed scaling a step in which an operand is zero everywhere is not entered into that operand's history,
    so that a large value from before it counts for a step longer than the history is long."""

    delayed_class = _ForgetsZeroSteps
