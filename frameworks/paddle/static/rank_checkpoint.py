"""Checkpoints of several static-mode ranks in one folder: shared variables once, each rank's own by that rank.

A rank's own are its random stream and its running statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import paddle
from paddle import distributed

from fixtures.arrays import Array
from fixtures.recipe import Ranks
from frameworks.base import same_parts
from frameworks.paddle.distributed.rank_checkpoint import agreed, file_of
from frameworks.paddle.static import checkpoint

_OWN = ("count", "buffers", "generator")


class StaticRankRun(checkpoint.StaticRun, Protocol):
    """The parts of a rank in a checkpoint."""

    ranks: Ranks

    def buffers(self) -> dict[str, Array]: ...


def save(trainer: StaticRankRun, path: Path) -> None:
    """Writes the run below the folder `path`, which all ranks share and which is made if it is not there.

    Raises:
        OSError: on every rank, if one of them cannot write.
    """
    agreed(lambda: _write(trainer, path), trainer.ranks.count, OSError, f"{path} cannot be written")


def _write(trainer: StaticRankRun, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    rank = distributed.get_rank()
    if rank == 0:
        checkpoint.save(trainer, path)
    own = {"count": trainer.ranks.count, "buffers": trainer.buffers(), "generator": trainer.stream.state}
    paddle.save(own, str(file_of(path, rank)))


def restore(trainer: StaticRankRun, path: Path) -> None:
    """Restores what `save` wrote, with as many ranks or others; a rank more begins with rank 0's own.

    Raises:
        ValueError: on every rank, if one of them cannot read a file; nothing is changed then.
    """
    refused = f"{path} cannot be loaded"
    resumed = agreed(lambda: _loaded(trainer, path), trainer.ranks.count, ValueError, refused)
    vars(trainer).update(vars(resumed))


def _loaded(trainer: StaticRankRun, path: Path) -> checkpoint.StaticRun:
    resumed = checkpoint.loaded(trainer, path)
    rank, own = distributed.get_rank(), _read(file_of(path, 0))
    if 0 < rank < own["count"]:
        own = _read(file_of(path, rank))
    for name, value in own["buffers"].items():
        resumed.store.write(trainer.stored_names[f"buffer/{name}"], value)
    resumed.stream.state = own["generator"]
    return resumed


def _read(file: Path) -> dict[str, Any]:
    try:
        result = paddle.load(str(file), return_numpy=True)
    except Exception as error:
        raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    same_parts(file, result if isinstance(result, dict) else (), _OWN)
    state: dict[str, Any] = result
    return state
