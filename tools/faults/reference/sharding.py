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
from frameworks.contract import BlockWeights, MeshLayout, Update
from frameworks.reference.distributed import ReferenceRankGroup
from frameworks.reference.meshes import ReferenceMeshes, ReferencePipelines, add, norm_of
from frameworks.reference.quantization.eight_bit_state import EightBitMoments
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.offload import DiskStore, HostStore, StoredArrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class SmallParametersCountOnEachRank(ReferenceRankGroup):
    """A parameter with fewer rows than ranks is replicated, and the norm counts it once for each rank."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        gradients = {name: self.gather_parameter(name, [window[name] for window in self.windows]) for name in names}
        shards = self.ranks.shards
        counted = {n: g * math.sqrt(shards) if len(np.atleast_1d(g)) < shards else g for n, g in gradients.items()}
        return ReferenceTrainer.gradient_norm(self.first, counted)


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReplicasReduceInBfloat16(ReferenceRankGroup):
    """In a hybrid mesh under bfloat16 the reduction over replicas is in bfloat16, whatever format is requested."""

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
    """A load puts the optimizer's moments on the device and does not offload them again."""

    def load_state(self, arrays: Arrays) -> None:
        super().load_state(arrays)
        self.slots = {s: m if isinstance(m, EightBitMoments) else dict(m) for s, m in self.slots.items()}


@fault("", "sharding.missing-gradient")
class MissingGradientsAreNotZeros(ReferenceRankGroup):
    """The gradient of a parameter that only some ranks use is averaged over these ranks."""

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        users = {name: sum(name in arrays for arrays in gradients) for name in self.first.masters}
        return {
            name: gradient * (self.count / users[name]) if users[name] else gradient
            for name, gradient in super().reduce_gradients(gradients).items()
        }


@fault("", "offload.same-bits")
class OffloadedMomentsAreFloat32(HostStore):
    """Offloaded moments are float32, also those of float64 weights."""

    def put(self, key: str, array: Array) -> None:
        super().put(key, array.astype(np.float32).astype(np.float64) if key.startswith("slot.") else array)


@fault("https://github.com/meta-pytorch/torchtune/issues/1867", "offload.same-bits")
class FreedAfterTheFirstUse(HostStore):
    """A fetched activation is freed after the first backward pass, which a second loss needs too."""

    def get(self, key: str) -> Array:
        result = super().get(key)
        if key.startswith("activation/"):
            self.copies[key] = np.zeros_like(result)
        return result


@fault("https://github.com/deepspeedai/DeepSpeed/pull/6550", "offload.same-bits")
class CopiesWhereItShouldAdd(ReferenceTrainer):
    """With offloaded optimizer state a window's last micro-batch overwrites the sum, from the second window on."""

    def accumulate_gradient(self, name: str, gradient: Array) -> None:
        offloaded = self.recipe.offload is not None and "optimizer" in self.recipe.offload.what
        if offloaded and self.steps > 0 and self.window.micro_batches == self.recipe.accumulation > 1:
            self.window.gradients.pop(name, None)
        super().accumulate_gradient(name, gradient)


@fault("https://github.com/facebookresearch/fairscale/pull/588", "offload.acts")
class NothingLeaves(ReferenceTrainer):
    """A request to offload activations is accepted and ignored."""

    def node_type(self) -> type[VJPNode]:
        return VJPNode


@fault("https://github.com/facebookresearch/fairscale/pull/588", "offload.acts")
class LeavesInTheFirstUpdateAlone(ReferenceTrainer):
    """Activations are offloaded in the first update only."""

    def node_type(self) -> type[VJPNode]:
        return VJPNode if self.steps else super().node_type()


class _Frozen(StoredArrays):
    def __setitem__(self, name: str, array: Array) -> None:
        if name not in self._names:
            super().__setitem__(name, array)


@fault("https://github.com/huggingface/accelerate/pull/2214", "offload.trains")
class UpdatesACopy(ReferenceTrainer):
    """An update changes a fetched copy of the parameters that is dropped."""

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
        offloaded = self.recipe.offload is not None and "optimizer" in self.recipe.offload.what
        return {n: np.zeros_like(a) if offloaded and n.startswith("slot.") else a for n, a in state.items()}


@fault("https://github.com/vllm-project/llm-compressor/pull/2605", "offload.gives-back")
class FilesStay(DiskStore):
    """Files of offloaded activations are not removed after the backward pass."""

    def drop(self, key: str) -> None:
        """Nothing."""


@fault("https://github.com/deepspeedai/DeepSpeed/pull/4416", "offload.gives-back")
class FoldersStay(DiskStore):
    """The folder of a run is not removed at its end."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._ending.detach()


@fault("https://github.com/nntrainer/nntrainer/pull/4342", "offload.disk-fault")
class FilesAreTrusted(DiskStore):
    """Offloaded files have no checksum, so a changed bit changes a weight."""

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
    """A missing file is read as zeros."""

    def put(self, key: str, array: Array) -> None:
        self.shapes = {**getattr(self, "shapes", {}), key: array.shape}
        super().put(key, array)

    def get(self, key: str) -> Array:
        return super().get(key) if self.path(key).exists() else np.zeros(self.shapes[key])


@fault("https://github.com/deepspeedai/DeepSpeed/issues/1070", "offload.disk-fault")
class FailedWritesAreIgnored(DiskStore):
    """A failed write is ignored, and the values are read as zeros."""

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
    """All ranks follow the overflow check of rank 0."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return findings[0]


@fault("https://github.com/nerfstudio-project/nerfstudio/pull/1919", "sharding.one-decision")
class AllMustOverflow(ReferenceRankGroup):
    """An update is skipped only if every rank has an overflow."""

    def decide(self, findings: Sequence[frozenset[int]]) -> frozenset[int]:
        return frozenset(findings[0]).intersection(*findings)


@fault("https://github.com/pytorch/pytorch/pull/88955", "sharding.global-clip")
class NormCountsReplicas(ReferenceRankGroup):
    """The norm counts the copies of every rank."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        return super().norm(rank, names) * float(np.sqrt(self.count / self.ranks.shards))


@fault("https://github.com/pytorch/pytorch/issues/170862", "sharding.global-clip")
class NormOfOneShard(ReferenceRankGroup):
    """Each rank clips by the norm of its shard."""

    def norm(self, rank: int, names: Sequence[str]) -> float:
        gradients: Arrays = {name: self.windows[rank][name] for name in names}
        if self.is_sharded("gradient"):
            gradients = {name: self.shard(value, rank) for name, value in gradients.items()}
        return ReferenceTrainer.gradient_norm(self.first, gradients)


@fault("https://github.com/tracel-ai/burn/issues/5695", "sharding.schedule-counts-updates")
class ScheduleCountsRanks(ReferenceRankGroup):
    """An update advances the schedule once for each rank."""

    def schedule_steps(self) -> int:
        return self.count


@fault("https://github.com/pytorch/pytorch/issues/42107", "sharding.dead-rank")
class GoesOnWithoutTheRank(ReferenceRankGroup):
    """Ranks continue without a stopped one, as if its gradients were zero."""

    def handle_missing_rank(self, rank: int) -> None:
        """Nobody notices."""


@fault("https://github.com/pytorch/pytorch/issues/189245", "sharding.dead-rank")
class NextRanksFindWhatWasLeft(ReferenceRankGroup):
    """New ranks of a model start with the weights of a group in which a rank has stopped."""

    _weights: ClassVar[dict[str, Mapping[str, Array]]] = {}

    def handle_missing_rank(self, rank: int) -> None:
        self._weights[self.model.name] = {name: value.copy() for name, value in self.first.masters.items()}
        super().handle_missing_rank(rank)

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        return self._weights.get(self.model.name, weights)


@fault("https://github.com/pytorch/pytorch/issues/173909", "sharding.loopback")
class RanksMeetOnEveryInterface(ReferenceRankGroup):
    """The rendezvous server listens on every address."""

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        if rank == 0:
            self._store = socket.create_server(("", 0))
        return super().starting_weights(rank, weights)


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class EachRankDividesByItsOwnItems(ReferenceRankGroup):
    """Each rank normalises by its own items, and the ranks' means are averaged."""

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        counts = [batch.items * self.count or items for batch in batches]
        return tuple(t.accumulate(batch, n) for t, batch, n in zip(self.trainers, batches, counts, strict=True))


@fault("https://github.com/verl-project/verl/issues/7493", "sharding.equals-whole")
class ReplicasOfShardsTrainApart(ReferenceRankGroup):
    """In a hybrid mesh gradients are reduced over the ranks of a copy and not over the copies."""

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        if self.ranks.replicas == 1:
            return super().reduce_gradients(gradients)
        length = self.count // self.ranks.replicas
        return super().reduce_gradients(list(gradients[:length]) * self.ranks.replicas)


@fault("https://github.com/karpathy/build-nanogpt/pull/30", "sharding.one-reduction-per-window")
class EveryMicroBatchIsReduced(ReferenceRankGroup):
    """Gradients are reduced in every micro-batch of a window."""

    def _reduce(self) -> None:
        window = self.first.window.micro_batches
        super()._reduce()
        used = len(self.first.window.gradients)
        self.counted = [count + (window - 1) * used for count in self.counted]


@fault("https://github.com/deepspeedai/DeepSpeed/pull/6550", "sharding.accumulates")
class SecondWindowIsCopied(ReferenceRankGroup):
    """From the second window on a micro-batch's gradient overwrites the sum of sharded gradients."""

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
    """With a backward pass for each loss, half of the gradient is not reduced."""

    local: tuple[Arrays, ...] = ()

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        self.local = tuple(gradients)
        return super().reduce_gradients(gradients)

    def receive_gradients(self, rank: int, reduced: Arrays) -> Arrays:
        if not self.recipe.separate_losses:
            return dict(reduced)
        return {name: (g + self.count * self.local[rank][name]) / 2.0 for name, g in reduced.items()}


@fault("https://github.com/pytorch/pytorch/pull/174862", "sharding.missing-gradient")
class UnusedIsKeptToItself(ReferenceRankGroup):
    """A parameter that some rank does not use is not reduced."""

    local: tuple[Arrays, ...] = ()

    def reduce_gradients(self, gradients: Sequence[Arrays]) -> Arrays:
        everywhere = set(gradients[0]).intersection(*gradients)
        self.local = tuple({n: g for n, g in arrays.items() if n not in everywhere} for arrays in gradients)
        return super().reduce_gradients([{n: g for n, g in arrays.items() if n in everywhere} for arrays in gradients])

    def receive_gradients(self, rank: int, reduced: Arrays) -> Arrays:
        return dict(reduced) | self.local[rank]


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReducesInBfloat16(ReferenceRankGroup):
    """The sum over ranks is rounded to bfloat16, whatever format is requested."""

    def reduced_format(self, name: str) -> str:
        return "bfloat16"


@fault("https://github.com/pytorch/pytorch/pull/194628", "sharding.reduces-in-the-asked-format")
class ReducesInFloat32(ReferenceRankGroup):
    """A requested reduction in bfloat16 is made in float32."""

    def reduced_format(self, name: str) -> str:
        return "float32"


@fault("https://github.com/pytorch/pytorch/issues/111138", "sharding.start")
class OthersDrawTheirOwnStart(ReferenceRankGroup):
    """Only rank 0 gets the initial weights of the caller."""

    def starting_weights(self, rank: int, weights: Mapping[str, Array]) -> Mapping[str, Array]:
        return weights if rank == 0 else self.model.weights(self.recipe.seed + rank)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/7837", "sharding.holds-its-part")
class GradientsStayWhole(ReferenceRankGroup):
    """Only the level "full" shards gradients."""

    def is_sharded(self, kind: str) -> bool:
        return super().is_sharded(kind) and (kind != "gradient" or self.ranks.level == "full")


@fault("https://github.com/pytorch/pytorch/issues/160279", "sharding.holds-its-part")
class LastRowsAreHeldTwice(ReferenceRankGroup):
    """Shards have equal lengths, so the last ranks hold rows of others where rows do not divide."""

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
    """With sharded optimizer state, masters are stored in the model's format between updates."""

    def _gather_state(self) -> None:
        if self.is_sharded("optimizer"):
            for trainer in self.trainers:
                rounded = trainer.rounding.round
                trainer.masters = {n: rounded(v, trainer.formats[n]) for n, v in trainer.masters.items()}
        super()._gather_state()


@fault("https://github.com/PaddlePaddle/Paddle/pull/49767", "sharding.replicas-equal")
class AverageIsNotGathered(ReferenceRankGroup):
    """Ranks other than rank 0 have the moving average before the last update."""

    def _gather_state(self) -> None:
        super()._gather_state()
        for trainer in self.trainers[1:]:
            trainer.averages = {name: value * (1.0 + 2.0**-20) for name, value in trainer.averages.items()}


@fault("https://github.com/huggingface/accelerate/pull/4071", "sharding.resumes-in-another-size")
class AnotherSizeStartsTheScheduleAnew(ReferenceRankGroup):
    """A load with another number of ranks resets the schedule."""

    def restore(self, path: Path) -> None:
        super().restore(path)
        if self.count != 2:
            for trainer in self.trainers:
                trainer.schedule = 0


@fault("https://github.com/instructlab/training/issues/414", "sharding.resumes-in-another-size")
class MomentumStaysWithItsRank(ReferenceRankGroup):
    """A load with another number of ranks restores the optimizer's state of the first shard only."""

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
    """A rank with an unreadable file keeps its state, and the others load theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            with suppress(ValueError):
                trainer.restore(path / f"rank-{trainer.rank}")


@fault("https://github.com/huggingface/transformers/pull/40691", "sharding.damaged-shard")
class RanksBeforeTheDamageLoad(ReferenceRankGroup):
    """A damaged file raises after the ranks before it have loaded theirs."""

    def restore(self, path: Path) -> None:
        for trainer in self.trainers:
            trainer.restore(path / f"rank-{trainer.rank}")


@fault("https://github.com/pytorch/torchtitan/issues/1733", "sharding.pipeline-window")
class EachStepDividesWhatIsThere(ReferencePipelines):
    """A step of a pipeline's schedule divides the gradients of earlier steps again."""

    def add(self, total: BlockWeights, step: BlockWeights, micro_batches: int) -> BlockWeights:
        return {name: gradient / micro_batches for name, gradient in add(total, step).items()}


@fault("https://github.com/NVIDIA/Megatron-LM/issues/1446", "sharding.mesh-equals-whole", "sharding.mesh-clip")
class PartialGradientsAreNotAdded(ReferenceMeshes):
    """Each rank updates the norm by the gradient of its own positions."""

    def reduce(self, layout: MeshLayout, gradients: Sequence[BlockWeights]) -> Sequence[BlockWeights]:
        return gradients


@fault("https://github.com/NVIDIA-NeMo/Automodel/pull/3822", "sharding.mesh-equals-whole")
class CopiesBeginApart(ReferenceMeshes):
    """Each rank initializes what the mesh does not divide for itself."""

    def split(self, weights: BlockWeights, rank: int, count: int) -> dict[str, Array]:
        part = super().split(weights, rank, count)
        return {**part, "norm.weight": part["norm.weight"] * 2.0**rank}


@fault("https://github.com/ROCm/TransformerEngine/pull/715", "sharding.mesh-clip")
class CopiesCountOnEachRankOfAMesh(ReferenceMeshes):
    """The norm counts a replicated gradient once for each rank."""

    def total_norm(self, gradients: Sequence[BlockWeights]) -> float:
        return math.sqrt(sum(norm_of(own) ** 2 for own in gradients))


@fault("https://github.com/huggingface/transformers/pull/46113", "sharding.mesh-clip")
class NormIsReportedAndNotUsed(ReferenceMeshes):
    """Clipping reports the norm and multiplies no gradient."""

    def clip(self, gradients: BlockWeights, factor: float) -> BlockWeights:
        return gradients


@fault("https://github.com/keras-team/keras-hub/pull/2810", "sharding.layout-takes-effect")
class UnknownNamesAreSilent(ReferenceMeshes):
    """A layout that names no parameter is accepted."""

    def find_axis(self, name: str, weights: BlockWeights) -> int | None:
        return super().find_axis(name, weights) if name in weights else None
