"""Checkpoints of several ranks in one folder: shared state is written once, each rank's own state by that rank.

Replicas write the state of a single run. Shards are written by `torch.distributed.checkpoint`, whose files any number
of ranks can load. A rank's own state: its random streams, its buffers and the losses of its part of an open window.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed.checkpoint as shards
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.utils._pytree import tree_map_only

from fixtures.recipe import Ranks
from frameworks.base import same_parts
from frameworks.torch.training.trainer import FILE, LOOP, TorchTrainer

_SHARDS = "shards"
_SHARDED = ("model", "optimizer", "average")
T = TypeVar("T")


class RankRun(TorchTrainer):
    """One rank's part of a run, which is saved and restored by all ranks together."""

    ranks: Ranks

    @property
    def is_sharded(self) -> bool:
        """True if each rank holds a part of every parameter."""
        return self.ranks.level in ("gradients", "full")

    @property
    def root(self) -> nn.Module:
        """The module that PyTorch's functions for sharded state take."""
        return self.network

    def zero_gradient(self, name: str) -> torch.Tensor:
        """Zeros in the form in which `open_gradients` returns a parameter's gradient."""
        return torch.zeros_like(self.slots[name].tensor)

    def save(self, path: Path) -> None:
        """Writes the run into the folder `path`, which all ranks share and which is created if it is missing.

        Raises:
            OSError: on every rank, if one of them cannot write.
        """
        run_collectively(partial(self._write, path), OSError, f"{path} cannot be written")

    def _write(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        rank, count = distributed.get_rank(), distributed.get_world_size()
        own = {"count": count, LOOP: self.loop_state(), "buffers": dict(self.network.named_buffers())}
        if self.is_sharded:
            summed = self.open_gradients()
            state = self._collect_sharded_state(summed)
            whole = self._collect_shared_state(list(summed))
            shards.save(state, checkpoint_id=path / _SHARDS)
        else:
            whole = self.snapshot()
        torch.save(own, file_of_rank(path, rank))
        if rank == 0:
            torch.save(whole, path / FILE)

    def restore(self, path: Path) -> None:
        """Restores the files of `save`, with the same or another number of ranks.

        An additional rank begins with rank 0's streams and buffers.

        Raises:
            ValueError: on every rank, if a rank cannot read a file, or PyTorch refuses a part of it on a rank;
                only a refused part leaves a changed run.
        """
        refused = f"{path} cannot be loaded"
        whole, own = run_collectively(partial(self._read, path), ValueError, refused)
        if self.is_sharded:
            state = run_collectively(partial(self._read_shards, whole[LOOP], path), ValueError, refused)
            run_collectively(partial(self._load_shards, whole[LOOP], state), ValueError, refused)
            summed = state["gradients"]
        else:
            summed = whole[LOOP]["gradients"]
        run_collectively(partial(self._load_rest, whole, own, summed), ValueError, refused)

    def _shared_parts(self) -> dict[str, Any]:
        """The parts of which every rank has a whole copy."""
        parts = self.parts().items()
        return {name: part for name, part in parts if not (self.is_sharded and name.split(".")[0] in _SHARDED)}

    def _collect_shared_state(self, summed: list[str]) -> dict[str, Any]:
        """State shared by all ranks; `summed` are the parameters with gradients in an open window."""
        result = {name: part.state_dict() for name, part in self._shared_parts().items()}
        bare = [not stepper.optimizer.state for stepper in self.steppers]
        every = [bare] * distributed.get_world_size()
        distributed.all_gather_object(every, bare)
        return result | {
            LOOP: {**self.loop_state(), "gradients": summed, "bare": [all(of) for of in zip(*every, strict=True)]}
        }

    def _collect_sharded_state(self, summed: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Sharded state, with these gradients."""
        optimizers = [stepper.optimizer for stepper in self.steppers]
        applied = [stepper.applied for stepper in self.steppers]
        result: dict[str, Any] = {
            "model": get_model_state_dict(self.root),
            "optimizer": get_optimizer_state_dict(self.root, optimizers),
        }
        for stepper, count in zip(self.steppers, applied, strict=True):
            stepper.applied = count  # PyTorch steps an optimizer without state once to create the state
        if self.average is not None:
            result["average"] = get_model_state_dict(self.average)
        return result | {"gradients": dict(summed)}

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shared state, and this rank's own."""
        rank, count = distributed.get_rank(), distributed.get_world_size()
        whole = _torch_load(path / FILE)
        same_parts(path / FILE, whole, [*self._shared_parts(), LOOP])
        first = _torch_load(file_of_rank(path, 0))
        if first["count"] == count:
            return whole, _torch_load(file_of_rank(path, rank))
        every = [first, *(_torch_load(file_of_rank(path, other)) for other in range(1, first["count"]))]
        own = every[rank] if rank < len(every) else first
        return whole, {**own, LOOP: {**own[LOOP], **_window_of([other[LOOP] for other in every], rank)}}

    def _make_bare(self, loop: Mapping[str, Any]) -> None:
        """Removes optimizer state that was not saved, so that PyTorch asks only for saved state.

        `get_optimizer_state_dict` and `set_optimizer_state_dict` let an optimizer without state step once, to create
        it, unless there is a gradient.
        """
        for stepper, bare in zip(self.steppers, loop["bare"], strict=True):
            if bare:
                stepper.optimizer.state.clear()
            for group in stepper.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter) if bare else None

    def _read_shards(self, loop: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """The content of the shard files, in new tensors; the run is unchanged."""
        former = {name: slot.tensor.grad for name, slot in self.slots.items()}
        states = [dict(stepper.optimizer.state) for stepper in self.steppers]
        try:
            self._make_bare(loop)
            summed = {name: self.zero_gradient(name) for name in loop["gradients"]}
            content = tree_map_only(
                torch.Tensor, lambda tensor: tensor.detach().clone(), self._collect_sharded_state(summed)
            )
            shards.load(content, checkpoint_id=path / _SHARDS)
            return content
        finally:
            for name, slot in self.slots.items():
                slot.tensor.grad = former[name]
            for stepper, state in zip(self.steppers, states, strict=True):
                stepper.optimizer.state.clear()
                stepper.optimizer.state.update(state)

    def _load_shards(self, loop: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        set_model_state_dict(self.root, state["model"])
        self._make_bare(loop)
        optimizers = [stepper.optimizer for stepper in self.steppers]
        set_optimizer_state_dict(self.root, optimizers, state["optimizer"])
        if self.average is not None:
            set_model_state_dict(self.average, state["average"])

    def _load_rest(self, whole: Mapping[str, Any], own: Mapping[str, Any], summed: Mapping[str, torch.Tensor]) -> None:
        """Loads the unsharded state and this rank's own state."""
        for name, part in self._shared_parts().items():
            part.load_state_dict(whole[name])
        self.restore_loop_state(own[LOOP])
        self.put_gradients(summed)
        self.put_buffers(own["buffers"])

    def put_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Restores this rank's buffers."""
        for name, buffer in self.network.named_buffers():
            buffer.copy_(buffers[name])


def run_collectively(step: Callable[[], T], kind: type[Exception], what: str) -> T:
    """The result of `step`, after all ranks have run it; if it raises on one rank, every rank raises the same type."""
    done: list[T] = []
    problem = ""
    try:
        done.append(step())
    except (Exception, shards.CheckpointException) as error:
        problem = _error_line(error)
    problems = [problem] * distributed.get_world_size()
    distributed.all_gather_object(problems, problem)
    for rank, text in enumerate(problems):
        if text:
            raise kind(f"{what}: rank {rank}: {text}")
    return done[0]


def _error_line(error: BaseException) -> str:
    """An error in one line; for a `CheckpointException`, which is no `Exception`, the error that caused it."""
    causes = [cause for cause, _ in error.failures.values()] if isinstance(error, shards.CheckpointException) else []
    first: BaseException = (causes or [error])[0]
    return " ".join(f"{type(first).__name__}: {first}".split())


def file_of_rank(path: Path, rank: int) -> Path:
    """The file of a rank's own state."""
    return path / f"rank-{rank}.pt"


def _torch_load(file: Path) -> dict[str, Any]:
    return torch.load(file, map_location="cpu", weights_only=True)


def _window_of(loops: list[Mapping[str, Any]], rank: int) -> dict[str, Any]:
    """The losses of the open window; if the number of ranks has changed, rank 0 takes over those of all ranks."""
    side_by_side = zip(*(loop["window"] for loop in loops), strict=True)
    window = [[sum(total for total, _ in micro), sum(items for _, items in micro)] for micro in side_by_side]
    if rank:
        return {"window": [[0.0, 0] for _ in window], "items": 0}
    return {"window": window, "items": sum(loop["items"] for loop in loops)}
