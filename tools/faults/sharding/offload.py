"""Faults of what lies elsewhere while it is not used."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
from autograd.core import VJPNode

from fixtures.arrays import Array
from fixtures.recipe import Offload, OffloadedKind
from frameworks.reference.training.decisions import Arrays
from frameworks.reference.training.offload import ArrayStore, DiskStore, HostStore, StoredArrays
from frameworks.reference.training.trainer import ReferenceTrainer
from tools.faults import fault


class InStore(ReferenceTrainer):
    """A run whose stores are of these types."""

    host: type[HostStore] = HostStore
    disk: type[DiskStore] = DiskStore

    def make_store(self, offload: Offload) -> ArrayStore:
        return self.host() if offload.to == "host" else self.disk(offload.folder)


class _WithoutEmptying(HostStore):
    def get(self, key: str) -> Array:
        result = super().get(key)
        if key.startswith("activation/"):
            self.copies[key] = np.zeros_like(result)
        return result


@fault("https://github.com/meta-pytorch/torchtune/issues/1867", "offload.same-bits")
class FreedAfterTheFirstUse(InStore):
    """What a backward pass has fetched once is gone when a second loss needs it."""

    host = _WithoutEmptying


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
        made = super().storage(kind, group, arrays)
        return _Frozen(self.store, group, arrays) if isinstance(made, StoredArrays) and group == "master" else made  # type: ignore[arg-type]


@fault("https://github.com/radixark/miles/pull/1793", "offload.trains")
class SavesEmptyMoments(ReferenceTrainer):
    """A save of offloaded moments holds zeros."""

    def save_state(self) -> Arrays:
        state = super().save_state()
        away = self.recipe.offload is not None and "optimizer" in self.recipe.offload.what
        return {n: np.zeros_like(a) if away and n.startswith("slot.") else a for n, a in state.items()}


class _Keeping(DiskStore):
    def drop(self, key: str) -> None:
        """Nothing."""


@fault("https://github.com/vllm-project/llm-compressor/pull/2605", "offload.gives-back")
class FilesStay(InStore):
    """Files of activations stay in the folder after their backward pass."""

    disk = _Keeping


class _Staying(DiskStore):
    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self._ending.detach()


@fault("https://github.com/deepspeedai/DeepSpeed/pull/4416", "offload.gives-back")
class FoldersStay(InStore):
    """Each run leaves its folder behind."""

    disk = _Staying


class _Trusting(DiskStore):
    def put(self, key: str, array: Array) -> None:
        order = np.argsort([-abs(stride) for stride in array.strides], kind="stable").astype(int)
        self.orders = {**getattr(self, "orders", {}), key: (order, array.shape)}
        self.path(key).write_bytes(array.transpose(order).tobytes())

    def get(self, key: str) -> Array:
        order, shape = self.orders[key]
        values = np.frombuffer(self.path(key).read_bytes(), np.float64)
        return values.reshape([shape[axis] for axis in order]).transpose(np.argsort(order)).copy(order="K")


@fault("https://github.com/nntrainer/nntrainer/pull/4342", "offload.disk-fault")
class FilesAreTrusted(InStore):
    """What a file holds is taken as it is: a changed bit is another weight."""

    disk = _Trusting


class _Filling(DiskStore):
    def put(self, key: str, array: Array) -> None:
        self.shapes = {**getattr(self, "shapes", {}), key: array.shape}
        super().put(key, array)

    def get(self, key: str) -> Array:
        return super().get(key) if self.path(key).exists() else np.zeros(self.shapes[key])


@fault("https://github.com/deepspeedai/DeepSpeed/issues/1627", "offload.disk-fault")
class MissingFilesAreZeros(InStore):
    """A file that is missing stands for zeros."""

    disk = _Filling


class _Ignoring(DiskStore):
    def put(self, key: str, array: Array) -> None:
        try:
            super().put(key, array)
        except OSError:
            self.lost = {**getattr(self, "lost", {}), key: np.zeros_like(array)}

    def get(self, key: str) -> Array:
        lost: dict[str, Array] = getattr(self, "lost", {})
        return lost[key] if key in lost else super().get(key)


@fault("https://github.com/deepspeedai/DeepSpeed/issues/1070", "offload.disk-fault")
class FailedWritesAreIgnored(InStore):
    """Where a file cannot be written, zeros come back."""

    disk = _Ignoring
