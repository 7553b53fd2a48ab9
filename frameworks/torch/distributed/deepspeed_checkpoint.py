"""Checkpoints of DeepSpeed: the engine's own files, and each rank's own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed

from fixtures.arrays import Array
from frameworks.base import same_parts
from frameworks.torch.distributed.deepspeed import Engine
from frameworks.torch.distributed.rank_checkpoint import agreed
from frameworks.torch.training.checkpoint import LOOP, TorchRun, go_on, gradients, loop_state

_TAG = "engine"
_AVERAGE = "average"


class EngineRun(TorchRun, Protocol):
    """The parts of a DeepSpeed run in a checkpoint."""

    sharding: Engine

    def parameters(self) -> dict[str, Array]: ...

    def put_summed(self, summed: dict[str, torch.Tensor]) -> None: ...


def save(trainer: EngineRun, path: Path) -> None:
    """Writes the run below the folder `path`, which all ranks share and which is made if it is not there.

    Raises:
        OSError: on every rank, if one of them cannot write.
    """
    agreed(lambda: _write(trainer, path), OSError, f"{path} cannot be written")


def _write(trainer: EngineRun, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    average = None if trainer.average is None else trainer.average.state_dict()
    trainer.sharding.engine.save_checkpoint(str(path), tag=_TAG, client_state={_AVERAGE: average})
    own = {
        "count": distributed.get_world_size(),
        LOOP: loop_state(trainer),
        "open": trainer.sharding.is_open,
        "gradients": gradients(trainer),
        "buffers": dict(trainer.network.named_buffers()),
    }
    torch.save(own, _file_of(path, distributed.get_rank()))


def load(trainer: EngineRun, path: Path) -> None:
    """Brings a run that has made no update to what `save` wrote; a rank more than there were takes rank 0's own part.

    Raises:
        ValueError: on every rank, if one of them cannot read a file or DeepSpeed loads nothing of it; the run is of no
            use then.
    """
    refused = f"{path} cannot be loaded"
    own = agreed(lambda: _read(path), ValueError, refused)
    state = agreed(lambda: _load_engine(trainer, path), ValueError, refused)
    agreed(lambda: _go_on(trainer, path, own, state), ValueError, refused)


def _read(path: Path) -> dict[str, Any]:
    """This rank's own part, rank 0's if there were fewer ranks."""
    rank = distributed.get_rank()
    first: dict[str, Any] = torch.load(_file_of(path, 0), weights_only=True)
    if rank == 0 or rank >= first["count"]:
        return first
    own: dict[str, Any] = torch.load(_file_of(path, rank), weights_only=True)
    return own


def _load_engine(trainer: EngineRun, path: Path) -> dict[str, Any]:
    """The client state that the engine returns."""
    loaded, state = trainer.sharding.engine.load_checkpoint(str(path), tag=_TAG)
    if loaded is None:
        raise ValueError(f"DeepSpeed found no checkpoint in {path}")
    return dict(state)


def _go_on(trainer: EngineRun, path: Path, own: dict[str, Any], state: dict[str, Any]) -> None:
    averages = [] if trainer.average is None else [_AVERAGE]
    same_parts(path, [name for name in (_AVERAGE,) if state[name] is not None], averages)
    if trainer.average is not None:
        trainer.average.load_state_dict(state[_AVERAGE])
    go_on(trainer, own[LOOP])
    for name, buffer in trainer.network.named_buffers():
        buffer.copy_(own["buffers"][name])
    if own["open"]:
        trainer.put_summed(own["gradients"])


def _file_of(path: Path, rank: int) -> Path:
    return path / f"rank-{rank}.pt"
