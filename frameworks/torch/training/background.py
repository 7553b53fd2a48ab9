"""Saves of values by `torch.distributed.checkpoint`, in the background by `async_save`."""

from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint import CheckpointException, FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from fixtures.arrays import Array
from frameworks.contract import BackgroundRule, Gate, Kind, LiveValues, SaveSeries, ValueSaver

_STAGERS = MappingProxyType({"stager": False, "asynchronous-stager": True})
"""Shared stagers, and whether they stage asynchronously."""
RULE = BackgroundRule("future", "own-objects", "none", "finishes")
_ALONE = MappingProxyType({"no_dist": True})


class TorchValues(LiveValues):
    """Tensors, which are changed in place, and values of Python."""

    def make(self, kind: Kind, value: float, size: int) -> Any:
        if kind not in ("tensor", "view"):
            return super().make(kind, value, size)
        whole = torch.full((3 * size,), value)
        return whole[size : 2 * size] if kind == "view" else whole[:size].clone()

    def overwrite(self, kind: Kind, current: Any, value: float) -> Any:
        return current.fill_(value) if isinstance(current, torch.Tensor) else super().overwrite(kind, current, value)

    def to_array(self, kind: Kind, current: Any) -> Array:
        return super().to_array(kind, current.numpy() if isinstance(current, torch.Tensor) else current)


class GatedWriter(FileSystemWriter):
    """The writer of files, held at a gate."""

    def __init__(self, path: Path, gate: Gate) -> None:
        super().__init__(path)
        self.gate = gate

    def write_data(self, *args: Any, **named: Any) -> Any:
        self.gate.hold("data")
        return super().write_data(*args, **named)

    def finish(self, *args: Any, **named: Any) -> None:
        self.gate.hold("commit")
        super().finish(*args, **named)


def begin(tree: Any, path: Path, gate: Gate, stager: DefaultStager | None = None) -> "Future[Any]":
    """Begins a save in the background; returns its future once the values may change."""
    started = checkpoint.async_save(tree, storage_writer=GatedWriter(path, gate), async_stager=stager, **_ALONE)
    if isinstance(started, Future):
        return started
    started.staging_completion.result()
    return started.upload_completion


class TorchSeries(SaveSeries):
    """Saves of one tree, each in a folder of its own."""

    def __init__(self, folder: Path, values: LiveValues, shared: str) -> None:
        self._folder, self._values = folder, values
        self._futures: list[Future[Any]] = []
        self._stager = _make_stager(asynchronous=_STAGERS[shared]) if shared in _STAGERS else None

    def save(self, step: int, gate: Gate | None = None) -> None:
        path = self._folder / str(step)
        if gate is None:
            checkpoint.save(self._values.tree, checkpoint_id=path, **_ALONE)
        else:
            self._futures.append(begin(self._values.tree, path, gate, self._stager))

    def wait(self) -> None:
        while self._futures:
            self._futures.pop(0).result()

    def load(self, step: int, target: LiveValues) -> None:
        tree = target.tree
        try:
            checkpoint.load(tree, checkpoint_id=self._folder / str(step), **_ALONE)
        except (Exception, CheckpointException) as error:  # CheckpointException is no subclass of Exception
            raise ValueError(f"{self._folder / str(step)} cannot be loaded: {error}") from error

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


def _make_stager(*, asynchronous: bool) -> DefaultStager:
    """A stager in pageable memory, for machines without an accelerator."""
    return DefaultStager(StagingOptions(False, False, asynchronous, False))


SAVER = ValueSaver(
    TorchValues,
    TorchSeries,
    ("tensor", "view", "array", "list", "number"),
    ("none", *_STAGERS),
    ("data", "commit"),
    RULE,
)
"""`torch.distributed.checkpoint` without ranks."""
