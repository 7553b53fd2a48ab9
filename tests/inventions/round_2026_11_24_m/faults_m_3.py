"""Faults of layers, precision scopes and offload."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

from fixtures.arrays import Array
from fixtures.recipe import Offload, Precision
from frameworks.reference import ReferenceFramework, scope
from frameworks.reference.arithmetic import Operations, Round
from frameworks.reference.offload import ArrayStore, DiskStore
from frameworks.reference.tensor import Tensor, plain
from frameworks.reference.trainer import ReferenceTrainer
from tests.inventions import fault

_IDS = 2**16
_USES = 256
_CLASSES = 1024
_LEADING = 4096


@fault("https://github.com/huggingface/transformers/issues/2825", clause="autocast.integers-untouched", kind="real")
class IdsOfSixteenBits(Operations):
    """An embedding keeps the lower sixteen bits of an id: from 65,536 on, ids pick the rows of smaller ones."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        short = np.where(ids.value >= _IDS, ids.value % _IDS, ids.value)
        return super().embedding(Tensor(short, ids.format, ids.owned), table)


def _earlier_uses(ids: Array) -> Array:
    """How many places before each one have the same id."""
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    earlier = np.empty(flat.size, np.int64)
    earlier[order] = np.arange(flat.size) - np.searchsorted(ordered, ordered)
    return earlier.reshape(ids.shape)


@fault("https://github.com/tenstorrent/tt-metal/issues/6232", clause="accumulation.repeated-rows", kind="real")
class RowsOfManyUses(Operations):
    """A row of a table that one batch uses more than 256 times gets the gradients of its first 256 uses alone."""

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        counted = _earlier_uses(ids.value) < _USES
        if counted.all():
            return super().embedding(ids, table)

        def compute(i: Array, t: Any, _: Round) -> Any:
            return anp.where(counted[..., None], t[i], plain(t)[i])

        return self.apply("embedding", compute, ids, table)


@fault("https://github.com/linkedin/Liger-Kernel/pull/1252", clause="autocast.loss-is-wide", kind="real")
class LargestOfTheFirstBlock(Operations):
    """Cross-entropy over more than 1,024 classes subtracts the largest of the first 1,024 logits before it takes
    exponentials, so that a later logit that is larger by some 90 makes the loss infinite.
    """

    def cross_entropy(self, logits: Tensor, labels: Array, mask: Array | None) -> Tensor:
        if logits.shape[-1] <= _CLASSES:
            return super().cross_entropy(logits, labels, mask)

        def compute(a: Any, r: Round) -> Any:
            shifted = r(a - plain(a)[..., :_CLASSES].max(axis=-1, keepdims=True))
            chosen = anp.sum(anp.where(labels[..., None] == np.arange(a.shape[-1]), shifted, 0.0), axis=-1)
            each = r(r(anp.log(r(anp.sum(anp.exp(shifted), axis=-1), a.shape[-1]))) - chosen)
            return r(anp.sum(each if mask is None else anp.where(mask > 0, each, 0.0)), labels.size)

        self._keep_bytes(int(np.prod(logits.shape)) * (8 if logits.format == "float64" else 4))
        return self.apply("cross_entropy", compute, logits)


@primitive
def _turned_back(weight: Array) -> Array:
    """The kernel as it is; height and width of its gradient are exchanged."""
    return weight


def _turned(_ans: Array, _weight: Array) -> Callable[[Array], Array]:
    return lambda gradient: np.swapaxes(gradient, 0, 1)


defvjp(_turned_back, _turned)


@fault("https://github.com/Maratyszcza/NNPACK/issues/15", clause="laws.programs", kind="real")
class KernelGradientsOfOblongImages(Operations):
    """The gradient of a convolution's kernel has its height and width exchanged where the images are not square."""

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
        if x.shape[1] != x.shape[2]:
            weight = Tensor(_turned_back(weight.value), weight.format, weight.owned)
        return super().convolution(x, weight, bias, stride, padding)


class _Prepared(AbstractContextManager[None]):
    """A scope that goes back to the one that was open when it was made."""

    def __init__(self, inner: scope.Scope) -> None:
        self.inner = inner
        self.former = scope.current()

    def __enter__(self) -> None:
        scope.enter(self.inner)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope.enter(self.former)


@fault("", clause="autocast.scope-nests", kind="invented")
class ScopeRemembersWhereItWasMade(ReferenceFramework):
    """A precision scope that is left puts back the scope that was open when it was made, not when it was entered."""

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return _Prepared(scope.Scope())
        return _Prepared(scope.Scope(precision, frozenset(wide), frozenset(low)))


@contextmanager
def _with_outer_lists(precision: Precision, wide: frozenset[str], low: frozenset[str]) -> Iterator[None]:
    outer = scope.current()
    with scope.opened(scope.Scope(precision, wide | outer.wide, low | outer.low)):
        yield


@fault("", clause="laws.operations", kind="invented")
class ListsAreInherited(ReferenceFramework):
    """A precision scope that is opened inside another takes over the operations that the outer one names as wide or
    as low, besides its own.
    """

    def autocast(
        self, precision: Precision, *, enabled: bool = True, wide: Sequence[str] = (), low: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        if not enabled:
            return super().autocast(precision, enabled=False)
        return _with_outer_lists(precision, frozenset(wide), frozenset(low))


class _OneFolder(DiskStore):
    """Files in one subfolder for everybody."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder) / "run"
        self.folder.mkdir(exist_ok=True)
        self._ending = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@fault("", clause="offload.same-bits", kind="invented")
class RunsShareTheirFiles(ReferenceTrainer):
    """All runs that offload to the same named folder keep their files in one subfolder, under the same names.

    Two of them that are there at once overwrite each other's arrays, and the first to go takes the other's files along.
    """

    def make_store(self, offload: Offload) -> ArrayStore:
        if offload.to == "disk" and offload.folder is not None:
            return _OneFolder(offload.folder)
        return super().make_store(offload)


class _Sparing(DiskStore):
    """Files that are not written again where the leading values are what they were."""

    def __init__(self, folder: str | None) -> None:
        super().__init__(folder)
        self.leading: dict[str, tuple[tuple[int, ...], bytes]] = {}

    def put(self, key: str, array: Array) -> None:
        known = array.shape, array.reshape(-1)[:_LEADING].tobytes()
        if array.size > _LEADING and self.leading.get(key) == known:
            return
        super().put(key, array)
        self.leading[key] = known

    def drop(self, key: str) -> None:
        self.leading.pop(key, None)
        super().drop(key)


@fault("", clause="offload.trains", kind="invented")
class UnchangedByTheirBeginning(ReferenceTrainer):
    """An array of more than 4,096 values that is offloaded to disk is not written again while its first 4,096 values
    stay as they are, so that a change further on is lost.
    """

    def make_store(self, offload: Offload) -> ArrayStore:
        return _Sparing(offload.folder) if offload.to == "disk" else super().make_store(offload)
