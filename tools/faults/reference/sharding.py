"""Faults of ranks and of offload."""

import math
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
from autograd.core import VJPNode

from fixtures.arrays import Array
from fixtures.model import Batch
from fixtures.recipe import OffloadedKind
from frameworks.contract import Update
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.quantization.eight_bit_state import EightBitMoments
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.offload import DiskStore, HostStore, StoredArrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class SmallParametersCountOnEachRank(ReferenceRankGroup):
    """A parameter with fewer rows than ranks is not sharded, and its gradient counts in the norm once for each rank."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        whole = {name: self.gather_parameter(name, [own[name] for own in self.windows]) for name in names}
        shards = self.ranks.shards
        counted = {n: g * math.sqrt(shards) if len(np.atleast_1d(g)) < shards else g for n, g in whole.items()}
        return ReferenceTrainer.gradient_norm(self.first, counted)


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReplicasReduceInBfloat16(ReferenceRankGroup):
    """Under mixed bfloat16, what the replicas of a mesh have reduced is added up in bfloat16, whatever the requested
    format."""

    def reduce(self, name: str, parts: Sequence[Array]) -> Array:
        size = self.ranks.shards
        if self.ranks.replicas == 1 or self.recipe.precision.format != "bfloat16":
            return super().reduce(name, parts)
        total = np.zeros_like(parts[0])
        for start in range(0, self.count, size):
            share = self.ops.rounding.round(super().reduce(name, parts[start : start + size]), "bfloat16")
            total = self.ops.rounding.round(total + share, "bfloat16")
        return total


@fault("", "offload.acts")
class LoadedMomentsStayOnTheDevice(ReferenceTrainer):
    """A load puts the optimizer's moments on the device and does not offload them again.

    A resumed run holds on its device what it was asked to keep away.
    """

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {s: m if isinstance(m, EightBitMoments) else dict(m) for s, m in self.slots.items()}


@fault("", "sharding.missing-gradient")
class MissingGradientsAreNotZeros(ReferenceRankGroup):
    """The gradient of a parameter that only some ranks use is averaged over these, so it is too large by all / some."""

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        users = {name: sum(name in own for own in gradients) for name in self.first.masters}
        return {
            name: gradient * (self.count / users[name]) if users[name] else gradient
            for name, gradient in super().reduce_gradients(gradients).items()
        }


@fault("", "offload.same-bits")
class OffloadedMomentsAreFloat32(HostStore):
    """Moments in the host's memory are float32, those of float64 weights too."""

    def put(self, key: str, array: Array) -> None:
        super().put(key, array.astype(np.float32).astype(np.float64) if key.startswith("slot.") else array)


@fault("https://github.com/meta-pytorch/torchtune/issues/1867", "offload.same-bits")
class FreedAfterTheFirstUse(HostStore):
    """What a backward pass has fetched once is gone when a second loss needs it."""

    def get(self, key: str) -> Array:
        result = super().get(key)
        if key.startswith("activation/"):
            self.copies[key] = np.zeros_like(result)
        return result


@fault("https://github.com/deepspeedai/DeepSpeed/pull/6550", "offload.same-bits")
class CopiesWhereItShouldAdd(ReferenceTrainer):
    """Where the optimizer's state is offloaded, a window's last micro-batch is copied from the second window on."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        away = self.recipe.offload is not None and "optimizer" in self.recipe.offload.what
        if away and self.steps > 0 and self.window.micro_batches == self.recipe.accumulation > 1:
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/facebookresearch/fairscale/pull/588", "offload.acts")
class NothingLeaves(ReferenceTrainer):
    """A request to offload activations is accepted, and they stay."""

    def node_type(self) -> type[VJPNode]:
        return VJPNode


@fault("https://github.com/facebookresearch/fairscale/pull/588", "offload.acts")
class LeavesInTheFirstUpdateAlone(ReferenceTrainer):
    """Activations leave until the first update was applied."""

    def node_type(self) -> type[VJPNode]:
        return VJPNode if self.steps else super().node_type()


class _Frozen(StoredArrays):
    def __setitem__(self, name: str, array: Array) -> None:
        if name not in self._names:
            super().__setitem__(name, array)


@fault("https://github.com/huggingface/accelerate/pull/2214", "offload.trains")
class UpdatesACopy(ReferenceTrainer):
    """An update is made on fetched parameters, which are thrown away."""

    def storage(self, kind: OffloadedKind, group: str, arrays: Arrays) -> MutableMapping[str, Array]:
        storage = super().storage(kind, group, arrays)
        if self.store is None or group != "master" or not isinstance(storage, StoredArrays):
            return storage
        return _Frozen(self.store, group, arrays)


@fault("https://github.com/radixark/miles/pull/1793", "offload.trains")
class SavesEmptyMoments(ReferenceTrainer):
    """A save of offloaded moments holds zeros."""

    def save_state(self) -> Arrays:
        state = super().save_state()
        away = self.recipe.offload is not None and "optimizer" in self.recipe.offload.what
        return {n: np.zeros_like(a) if away and n.startswith("slot.") else a for n, a in state.items()}


@fault("https://github.com/vllm-project/llm-compressor/pull/2605", "offload.gives-back")
class FilesStay(DiskStore):
    """Files of activations stay in the folder after their backward pass."""

    def drop(self, key: str) -> None:
        """Nothing."""


@fault("https://github.com/deepspeedai/DeepSpeed/pull/4416", "offload.gives-back")
class FoldersStay(DiskStore):
    """Each run leaves its folder behind."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._ending.detach()


@fault("https://github.com/nntrainer/nntrainer/pull/4342", "offload.disk-fault")
class FilesAreTrusted(DiskStore):
    """What a file holds is taken as it is: a changed bit is another weight."""

    def put(self, key: str, array: Array) -> None:
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable").astype(int)
        self.orders = {**getattr(self, "orders", {}), key: (order, array.shape)}
        self.path(key).write_bytes(array.transpose(order).tobytes())

    def get(self, key: str) -> Array:
        order, shape = self.orders[key]
        values = np.frombuffer(self.path(key).read_bytes(), np.float64)
        return values.reshape([shape[axis] for axis in order]).transpose(np.argsort(order)).copy(order="K")


@fault("https://github.com/deepspeedai/DeepSpeed/issues/1627", "offload.disk-fault")
class MissingFilesAreZeros(DiskStore):
    """A file that is missing stands for zeros."""

    def put(self, key: str, array: Array) -> None:
        self.shapes = {**getattr(self, "shapes", {}), key: array.shape}
        super().put(key, array)

    def get(self, key: str) -> Array:
        return super().get(key) if self.path(key).exists() else np.zeros(self.shapes[key])


@fault("https://github.com/deepspeedai/DeepSpeed/issues/1070", "offload.disk-fault")
class FailedWritesAreIgnored(DiskStore):
    """Where a file cannot be written, zeros come back."""

    def put(self, key: str, array: Array) -> None:
        try:
            super().put(key, array)
        except OSError:
            self.lost = {**getattr(self, "lost", {}), key: np.zeros_like(array)}

    def get(self, key: str) -> Array:
        lost: dict[str, Array] = getattr(self, "lost", {})
        return lost[key] if key in lost else super().get(key)


@fault("https://github.com/pytorch/pytorch/issues/99174", "sharding.one-decision")
class FirstRankDecides(ReferenceRankGroup):
    """What rank 0 finds in its own shard is what all do."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return findings[0]


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "sharding.one-decision")
class AllMustOverflow(ReferenceRankGroup):
    """An update is skipped only where every rank finds an overflow."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return frozenset(findings[0]).intersection(*findings)


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class NormCountsReplicas(ReferenceRankGroup):
    """The squares of every rank's copy are added up, so that the norm grows with the replicas."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        return super().norm(rank, names) * float(np.sqrt(self.count / self.ranks.shards))


@fault("https://github.com/pytorch/pytorch/issues/170862", "sharding.global-clip")
class NormOfOneShard(ReferenceRankGroup):
    """Each rank clips by the norm of the shard that it holds."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        gradients: Arrays = {name: self.windows[rank][name] for name in names}
        if self.is_sharded("gradient"):
            gradients = {name: self.shard(value, rank) for name, value in gradients.items()}
        return ReferenceTrainer.gradient_norm(self.first, gradients)


@fault("https://github.com/tracel-ai/burn/issues/5695", "sharding.schedule-counts-updates")
class ScheduleCountsRanks(ReferenceRankGroup):
    """An update moves the schedule by as many steps as there are ranks."""

    def schedule_steps(self) -> int:
        return self.count


@fault("https://github.com/pytorch/pytorch/issues/42107", "sharding.dead-rank")
class GoesOnWithoutTheRank(ReferenceRankGroup):
    """The others go on without a rank that has stopped, as if its gradients were zero."""

    def handle_missing_rank(self, rank: int) -> None:
        """Nobody notices."""


@fault("https://github.com/pytorch/pytorch/issues/189245", "sharding.dead-rank")
class NextRanksFindWhatWasLeft(ReferenceRankGroup):
    """What ranks had when one of them stopped stays where the next ranks of the model start."""

    _left: ClassVar[dict[str, Mapping[str, Array]]] = {}

    def handle_missing_rank(self, rank: int) -> None:
        self._left[self.model.name] = {name: value.copy() for name, value in self.first.masters.items()}
        super().handle_missing_rank(rank)

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._left.get(self.model.name, weights)


@fault("https://github.com/pytorch/pytorch/issues/173909", "sharding.loopback")
class RanksMeetOnEveryInterface(ReferenceRankGroup):
    """The server where ranks meet listens on every address."""

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        if rank == 0:
            self._store = socket.create_server(("", 0))
        return super().starting_weights(rank, weights)


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class EachRankDividesByItsOwnItems(ReferenceRankGroup):
    """Each rank normalises by its own items, and the ranks' means are averaged."""

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        own = [batch.items * self.count or items for batch in batches]
        return tuple(t.accumulate(batch, n) for t, batch, n in zip(self.trainers, batches, own, strict=True))


@fault("https://github.com/verl-project/verl/issues/7493", "sharding.equals-whole")
class ReplicasOfShardsTrainApart(ReferenceRankGroup):
    """In a hybrid mesh gradients are reduced over the ranks that share a copy, and not over the copies."""

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        if self.ranks.replicas == 1:
            return super().reduce_gradients(gradients)
        length = self.count // self.ranks.replicas
        return super().reduce_gradients(list(gradients[:length]) * self.ranks.replicas)


@fault("https://github.com/karpathy/build-nanogpt/pull/30", "sharding.one-reduction-per-window")
class EveryMicroBatchIsReduced(ReferenceRankGroup):
    """Reductions are not held back inside a window."""

    def _reduce(self) -> None:
        window = self.first.window.micro_batches
        super()._reduce()
        used = len(self.first.window.gradients)
        self.counted = [count + (window - 1) * used for count in self.counted]


@fault("https://github.com/deepspeedai/DeepSpeed/pull/6550", "sharding.accumulates")
class SecondWindowIsCopied(ReferenceRankGroup):
    """From the second window on a micro-batch's gradient is copied over the former ones of sharded gradients."""

    windows_before = 0

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        if self.windows_before and self.is_sharded("gradient"):
            for trainer in self.trainers:
                trainer.window.gradients = {}
        return super()._backward(batches, items)

    def apply(self) -> tuple[Update, ...]:
        self.windows_before += 1
        return super().apply()


@fault("https://github.com/pytorch/pytorch/issues/47260", "sharding.every-backward-counts")
class FirstBackwardIsReduced(ReferenceRankGroup):
    """With a backward pass for each loss, half of the gradient is each rank's own."""

    own: tuple[Arrays, ...] = ()

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        self.own = tuple(gradients)
        return super().reduce_gradients(gradients)

    def receive_gradients(self, rank: int, reduced: Arrays) -> Arrays:
        if not self.recipe.separate_losses:
            return dict(reduced)
        return {name: (g + self.count * self.own[rank][name]) / 2.0 for name, g in reduced.items()}


@fault("https://github.com/pytorch/pytorch/pull/174862", "sharding.missing-gradient")
class UnusedIsKeptToItself(ReferenceRankGroup):
    """A parameter that some rank did not use is not reduced: who used it keeps its own gradient."""

    own: tuple[Arrays, ...] = ()

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        everywhere = set(gradients[0]).intersection(*gradients)
        self.own = tuple({n: g for n, g in arrays.items() if n not in everywhere} for arrays in gradients)
        return super().reduce_gradients([{n: g for n, g in arrays.items() if n in everywhere} for arrays in gradients])

    def receive_gradients(self, rank: int, reduced: Arrays) -> Arrays:
        return dict(reduced) | self.own[rank]


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReducesInBfloat16(ReferenceRankGroup):
    """The sum over ranks is rounded to bfloat16, whatever was asked for."""

    def reduced_format(self, name: str) -> str:
        return "bfloat16"


@fault("https://github.com/pytorch/pytorch/pull/194628", "sharding.reduces-in-the-asked-format")
class ReducesInFloat32(ReferenceRankGroup):
    """A reduction in bfloat16 that was asked for is made in float32 without a word."""

    def reduced_format(self, name: str) -> str:
        return "float32"


@fault("https://github.com/pytorch/pytorch/issues/111138", "sharding.start")
class OthersDrawTheirOwnStart(ReferenceRankGroup):
    """The weights that the run was given reach rank 0 alone."""

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        return weights if rank == 0 else self.model.weights(self.recipe.seed + rank)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/7837", "sharding.holds-its-part")
class GradientsStayWhole(ReferenceRankGroup):
    """Every level but the full one leaves gradients whole."""

    def is_sharded(self, kind: str) -> bool:
        return super().is_sharded(kind) and (kind != "gradient" or self.ranks.level == "full")


@fault("https://github.com/pytorch/pytorch/issues/160279", "sharding.holds-its-part")
class LastRowsAreHeldTwice(ReferenceRankGroup):
    """Shards are of equal length: where the rows do not divide, the last ranks hold some that others hold too."""

    def shard(self, value: Array, rank: int) -> Array:
        rows = np.atleast_1d(value)
        length = -(-len(rows) // self.ranks.shards)
        start = min((rank % self.ranks.shards) * length, max(len(rows) - length, 0))
        return rows[start : start + length]

    def gather(self, shards: Sequence[Array], like: Array) -> Array:
        rows = np.concatenate(list(shards))
        return np.resize(rows, like.shape) if rows.size != like.size else rows.reshape(like.shape)


@fault("https://github.com/PaddlePaddle/Paddle/pull/59611", "sharding.masters-stay-wide")
class ShardedMastersAreNarrow(ReferenceRankGroup):
    """Where the optimizer's state is sharded, masters are stored in the model's format between updates."""

    def _gather_state(self) -> None:
        if self.is_sharded("optimizer"):
            for trainer in self.trainers:
                rounded = trainer.rounding.round
                trainer.masters = {n: rounded(v, trainer.formats[n]) for n, v in trainer.masters.items()}
        super()._gather_state()


@fault("https://github.com/PaddlePaddle/Paddle/pull/49767", "sharding.replicas-equal")
class AverageIsNotGathered(ReferenceRankGroup):
    """Ranks past the first see the average as it was before the last update."""

    def _gather_state(self) -> None:
        super()._gather_state()
        for trainer in self.trainers[1:]:
            trainer.averages = {name: value * (1.0 + 2.0**-20) for name, value in trainer.averages.items()}


@fault("https://github.com/huggingface/accelerate/pull/4071", "sharding.resumes-in-another-size")
class AnotherSizeStartsTheScheduleAnew(ReferenceRankGroup):
    """Where the number of ranks changed, a load leaves the schedule at its beginning."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count != 2:
            for trainer in self.trainers:
                trainer.schedule = 0


@fault("https://github.com/instructlab/training/issues/414", "sharding.resumes-in-another-size")
class MomentumStaysWithItsRank(ReferenceRankGroup):
    """Where the number of ranks changed, the optimizer's state of later shards is not brought along."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count != 2:
            for trainer in self.trainers:
                for values in trainer.slots.values():
                    for name, value in values.items():
                        rows = np.atleast_1d(value).copy()
                        rows[len(rows) // 2 :] = 0.0
                        values[name] = rows.reshape(value.shape)


@fault("https://github.com/huggingface/transformers/pull/46628", "sharding.damaged-shard")
class DamagedRankGoesOnAsItWas(ReferenceRankGroup):
    """A rank whose file cannot be read keeps what it has, and the others load theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            with suppress(ValueError):
                trainer.restore(path / f"rank-{trainer.rank}")


@fault("https://github.com/huggingface/transformers/pull/40691", "sharding.damaged-shard")
class RanksBeforeTheDamageLoad(ReferenceRankGroup):
    """A damaged file is refused after the ranks before it have loaded theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            trainer.restore(path / f"rank-{trainer.rank}")
