"""Checkpoints of several static-mode ranks in one folder: shared variables once, each rank's own by that rank.

A rank's own are its random stream and its running statistics.
"""

from pathlib import Path

import paddle
from paddle import distributed

from frameworks.paddle.distributed.ranks import file_of, read_parts, run_collectively
from frameworks.paddle.static.trainer import SavedRun, load_run
from frameworks.paddle.static.trainer import save as save_shared

_OWN = ("count", "buffers", "generator")


def save(trainer: SavedRun, ranks: int, path: Path) -> None:
    """Writes the run below the folder `path`, which all ranks share and which is made if it is not there.

    Raises:
        OSError: on every rank, if one of them cannot write.
    """
    run_collectively(lambda: _write(trainer, ranks, path), ranks, OSError, f"{path} cannot be written")


def _write(trainer: SavedRun, ranks: int, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    rank = distributed.get_rank()
    if rank == 0:
        save_shared(trainer, path)
    own = {"count": ranks, "buffers": trainer.buffers(), "generator": trainer.stream.state}
    paddle.save(own, str(file_of(path, rank)))


def restore(trainer: SavedRun, ranks: int, path: Path) -> None:
    """Restores what `save` wrote, with as many ranks or others; a rank more begins with rank 0's own.

    Raises:
        ValueError: on every rank, if one of them cannot read a file; nothing is changed then.
    """
    refused = f"{path} cannot be loaded"
    resumed = run_collectively(lambda: _load_rank(trainer, path), ranks, ValueError, refused)
    vars(trainer).update(vars(resumed))


def _load_rank(trainer: SavedRun, path: Path) -> SavedRun:
    resumed = load_run(trainer, path)
    rank, own = distributed.get_rank(), read_parts(file_of(path, 0), _OWN, return_numpy=True)
    if 0 < rank < own["count"]:
        own = read_parts(file_of(path, rank), _OWN, return_numpy=True)
    for name, value in own["buffers"].items():
        resumed.store.write(trainer.stored_names[f"buffer/{name}"], value)
    resumed.stream.state = own["generator"]
    return resumed
