"""Checkpoints of several ranks in one folder: shared state is written once, each rank's own state by that rank.

A rank's own are its random stream, its running statistics and the losses of its part of an open window.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import paddle
from paddle import distributed

from frameworks.base import same_parts
from frameworks.paddle.training.checkpoint import FILE, load, parts
from frameworks.paddle.training.state_readers import ReadRun

T = TypeVar("T")
_OWN = ("count", "buffers", "window", "items", "generator", "calls")


def save(trainer: ReadRun, ranks: int, path: Path) -> None:
    """Writes the run below the folder `path`, which all ranks share and which is made if it is not there.

    Raises:
        OSError: on every rank, if one of them cannot write.
    """
    agreed(lambda: _write(trainer, ranks, path), ranks, OSError, f"{path} cannot be written")


def _write(trainer: ReadRun, ranks: int, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    whole = parts(trainer)
    buffers = {name for name, _ in trainer.network.named_buffers()}
    own = {
        "count": ranks,
        "buffers": {name: value for name, value in whole["model"].items() if name in buffers},
        "window": whole["window"]["micro-batches"],
        "items": whole["window"]["items"],
        "generator": whole["generator"],
        "calls": whole["calls"],
    }
    rank = distributed.get_rank()
    paddle.save(own, str(file_of(path, rank)))
    if rank == 0:
        paddle.save(whole, str(path / FILE))


def restore(trainer: ReadRun, ranks: int, path: Path) -> None:
    """Restores what `save` wrote, with as many ranks or others; a rank more begins with rank 0's own.

    Raises:
        ValueError: on every rank, if one of them cannot read a file, or Paddle refuses a part of it on one; nothing is
            changed then.
    """
    refused, resumed = f"{path} cannot be loaded", trainer.anew()
    saved = agreed(lambda: _read(resumed, ranks, path), ranks, ValueError, refused)
    agreed(lambda: load(resumed, saved), ranks, ValueError, refused)
    vars(trainer).update(vars(resumed))


def agreed(step: Callable[[], T], count: int, kind: type[Exception], what: str) -> T:
    """The step's result after every rank has taken it; if it raises on one rank, every rank raises this type."""
    done: list[T] = []
    problem = ""
    try:
        done.append(step())
    except Exception as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
    problems = [problem]
    if count > 1:
        problems = []
        with paddle.base.dygraph.guard():
            distributed.all_gather_object(problems, problem)
    for rank, text in enumerate(problems):
        if text:
            raise kind(f"{what}: rank {rank}: {text}")
    return done[0]


def file_of(path: Path, rank: int) -> Path:
    return path / f"rank-{rank}.pdparams"


def read_parts(file: Path, own: Sequence[str], **given: Any) -> dict[str, Any]:
    """The dictionary of parts in a file, which `paddle.load` is given more arguments for.

    Raises:
        ValueError: Paddle cannot load it, or it holds other parts.
    """
    try:
        loaded = paddle.load(str(file), **given)
    except Exception as error:
        raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    same_parts(file, loaded if isinstance(loaded, dict) else (), own)
    result: dict[str, Any] = loaded
    return result


def _read(resumed: ReadRun, count: int, path: Path) -> dict[str, Any]:
    """The parts of this rank's run."""
    rank = distributed.get_rank()
    whole = read_parts(path / FILE, tuple(parts(resumed)))
    first = read_parts(file_of(path, 0), _OWN)
    if first["count"] == count:
        own = first if rank == 0 else read_parts(file_of(path, rank), _OWN)
    else:
        every = [first, *(read_parts(file_of(path, other), _OWN) for other in range(1, int(first["count"])))]
        own = {**(every[rank] if rank < len(every) else first), **_window_of(every, rank)}
    return {
        **whole,
        "model": {**whole["model"], **own["buffers"]},
        "window": {**whole["window"], "micro-batches": own["window"], "items": own["items"]},
        "generator": own["generator"],
        "calls": own["calls"],
    }


def _window_of(every: Sequence[Mapping[str, Any]], rank: int) -> dict[str, Any]:
    """The losses of the open window where the number of ranks has changed: rank 0 takes over those of all."""
    micro_batches = list(zip(*(own["window"] for own in every), strict=True))
    if rank:
        return {"window": [[0.0, 0] for _ in micro_batches], "items": 0}
    summed = [[sum(total for total, _ in micro), sum(items for _, items in micro)] for micro in micro_batches]
    return {"window": summed, "items": sum(own["items"] for own in every)}
