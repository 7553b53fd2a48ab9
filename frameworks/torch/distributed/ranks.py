"""One rank of a run of several PyTorch processes: a member of their group, its trainers, and their checkpoints.

Replicas write the state of a single run. Shards are written by `torch.distributed.checkpoint`, whose files any number
of ranks can load. A rank's own state: its random streams, its buffers and the losses of its part of an open window.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils._pytree import tree_map_only

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import MicroBatch, same_parts
from frameworks.contract import Gradients, Update
from frameworks.ranks import group_seconds
from frameworks.torch.core.layers import Network, parameters_by_name
from frameworks.torch.core.settings import DTYPES, to_array, to_tensor
from frameworks.torch.distributed.sharding import (
    Replicated,
    Sharded,
    ShardedNetwork,
    is_cast,
    local,
    part_of,
    resident_bytes,
    shard,
)
from frameworks.torch.training.optimizers import Stepper, optimizer_kind, steppers
from frameworks.torch.training.trainer import FILE, LOOP, TorchTrainer
from frameworks.ways import require_calls

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


class ShardedStepper(Stepper):
    """One optimizer whose state is sharded by whole parameters: `ZeroRedundancyOptimizer`."""

    def __init__(self, group: distributed.ProcessGroup, *args: Any) -> None:
        self._group = group
        super().__init__(*args)

    def make_optimizer(self, recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        kind, options = optimizer_kind(recipe)
        self._sharded = ZeroRedundancyOptimizer(groups, optimizer_class=kind, process_group=self._group, **options)
        return self._sharded

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        return {parameters[index]: values for index, values in self.state_dict()["state"].items()}

    def parts(self) -> dict[str, Any]:
        return {**super().parts(), "optimizer": self}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's gathered state; every rank must call this."""
        self._sharded.consolidate_state_dict(to=0)
        first = distributed.get_rank(self._group) == 0
        message: list[Any] = [self._sharded.state_dict() if first else None]
        distributed.broadcast_object_list(message, src=distributed.get_global_rank(self._group, 0), group=self._group)
        return message[0]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes this rank's part of a gathered state."""
        self._sharded.load_state_dict(state)

    @property
    def own_state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """This rank's part of the optimizer state, by parameter."""
        return self._sharded.optim.state


class RankTrainer(RankRun):
    """One rank's part of a run. All methods except `random_state` and `segment_calls` are collective.

    Attributes:
        mesh: a line of ranks, at level "replicated" of replicas, else of shards; or a grid of both. The ranks along
            its dimension "shard" share one copy of the sharded arrays.
    """

    mesh: DeviceMesh

    def __init__(self, mesh: DeviceMesh, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> None:
        if recipe.ranks is None or recipe.ranks.count != mesh.size():
            raise ValueError(f"ranks of the recipe: got {recipe.ranks}, want {mesh.size()}")
        self.mesh = mesh
        self.ranks = recipe.ranks
        self._gradient_bytes = 0
        super().__init__(model, recipe, weights, "cpu", "eager")
        self._losses = self.sharding.losses

    def _steppers(self) -> list[Stepper]:
        """Shards or replicates the network before the optimizers are created."""
        self._take_names()
        self.sharding: ShardedNetwork
        if self.is_sharded:
            low, way = self._take_low_format(), self.recipe.way("sharding")
            self.sharding = Sharded(self.network, self._eager_losses, self.ranks, self.mesh, low=low, way=way)
            if self.average is not None and isinstance(self.average.module, Network):
                shard(self.average.module, self.ranks, self.mesh, low=low, way=way)
            self.slots = parameters_by_name(self.model, self.network)
        else:
            # reentrant checkpoints hide parameters from DDP's search; a separate loss does not reach all heads
            unused = not (self.network.is_reentrant or self.recipe.separate_losses)
            self.sharding = Replicated(
                self.network, self._eager_losses, self.ranks, unused=unused, way=self.recipe.way("data-parallel")
            )
        make = partial(ShardedStepper, self.mesh.get_group("shard")) if self.ranks.level == "optimizer" else Stepper
        return steppers(self.recipe, self.slots, make)

    def _take_low_format(self) -> torch.dtype | None:
        """The format of gathered parameters at level O2, stored as the inputs' format too; None at other levels."""
        if self.recipe.precision.level != "O2":
            return None
        self.low = DTYPES[self.recipe.precision.format]
        return self.low

    def _take_names(self) -> None:
        """Stores the network's names of the parameters, and the names of those that level O2 casts."""
        names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        self.own_names = {name: names[id(slot.tensor)] for name, slot in self.slots.items()}
        layers = {name: self.network.get_submodule(own.rpartition(".")[0]) for name, own in self.own_names.items()}
        self._cast_names = {name for name, layer in layers.items() if is_cast(layer)}

    # forward and backward

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return self.sharding.micro_batch(last=last)

    def _normalise(self, total: torch.Tensor, items: int) -> torch.Tensor:
        """The loss to back-propagate, multiplied by the number of ranks, by which the reduction divides."""
        return total * self.mesh.size() / items

    def accumulate(self, batch: Batch, items: int) -> float:
        with self._micro_batch(last=True):
            return self._record(batch, self._pass(batch, items, self.scaler))

    def _record(self, batch: Batch, total: float) -> float:
        """Records a micro-batch with this rank's own items."""
        return self.ledger.add(MicroBatch(total, batch.items), self.ledger.items + batch.items)

    def update_share(self, window: Window, items: int) -> Update:
        """Makes one update from this rank's window. All ranks' windows hold `items` items and are equally long."""
        for batch, total in zip(window, self._passes(window, items, self.scaler), strict=True):
            self._record(batch, total)
        return self.apply()

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        """`gradients` of all ranks' windows together, of which this rank has one."""
        return self._gradients(window, items)

    def _sum_products(self, gradients: Mapping[str, Array]) -> torch.Tensor:
        tensors = {
            self.own_names[name]: self.slots[name].tensor_of(
                value, torch.promote_types(self.slots[name].tensor.dtype, torch.float32)
            )
            for name, value in gradients.items()
        }
        return self.sharding.sum_products(tensors)

    # the update

    def _make_update(self, unscale_calls: int | None, inject: Gradients | None) -> Update:
        self._measure()
        return super()._make_update(unscale_calls, inject)

    def _discard_update(self) -> Update:
        self._measure()
        return super()._discard_update()

    def _measure(self) -> None:
        gradients = (slot.tensor.grad for slot in self.slots.values())
        self._gradient_bytes = sum(resident_bytes(gradient) for gradient in gradients if gradient is not None)

    def _add_in_place(self, gradient: torch.Tensor, value: torch.Tensor) -> None:
        gradient.add_(part_of(value, gradient))

    # readings

    def parameters(self) -> dict[str, Array]:
        """The parameters, at level O2 in the gathered format; the tensor of a parameter is its float32 master."""
        masters = self.master_parameters()
        if self.recipe.precision.level != "O2":
            return masters
        return {
            name: to_array(to_tensor(value, "cpu", self.low)) if name in self._cast_names else value
            for name, value in masters.items()
        }

    def master_parameters(self) -> dict[str, Array]:
        return super().parameters()

    def _resident_parameters(self) -> Iterable[torch.Tensor]:
        return map(local, self.network.parameters())

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: "parameter", "gradient" (of the last window), "optimizer", "buffer"."""
        states = [s.own_state if isinstance(s, ShardedStepper) else s.optimizer.state for s in self.steppers]
        moments = [
            value
            for state in states
            for values in state.values()
            for name, value in values.items()
            if name != "step" and isinstance(value, torch.Tensor)
        ]
        return {
            "parameter": sum(resident_bytes(slot.tensor) for slot in self.slots.values()),
            "gradient": self._gradient_bytes,
            "optimizer": sum(map(resident_bytes, moments)),
            "buffer": sum(resident_bytes(slot.tensor) for slot in self.buffer_slots.values()),
        }

    def collectives(self) -> dict[str, int]:
        """The number of gradients reduced since the last call: "gradients"."""
        return {"gradients": self.sharding.reductions()}


class TorchWorker:
    """One rank's process in the process group; creates the rank's trainers.

    Args:
        folder: initially empty folder shared by all ranks, for the rendezvous file.
        device: "cpu".
        mode: "eager".
    Raises:
        RuntimeError: the rendezvous timed out.
    """

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.count = count
        self._meshes: dict[int, DeviceMesh] = {}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo",
            store=distributed.FileStore(str(Path(folder) / "store"), count),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=group_seconds()),
        )

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> RankTrainer:
        """This rank's part of a new run; a collective call.

        Raises:
            ValueError: the recipe is for another number of ranks.
        """
        ranks = recipe.ranks or Ranks(self.count)
        with require_calls("torch", recipe, "data-parallel", "sharding"):
            return self.kind(ranks)(self._mesh(ranks), model, recipe.replace(ranks=ranks), weights)

    def kind(self, ranks: Ranks) -> type[RankTrainer]:
        """The class of such ranks' trainers."""
        return RankTrainer

    def barrier(self) -> None:
        """Waits for all ranks."""
        distributed.barrier()

    def _mesh(self, ranks: Ranks) -> DeviceMesh:
        """Groups are made once for each number of replicas, by all ranks in the same order."""
        replicas = ranks.replicas if ranks.level != "replicated" else 1
        if replicas not in self._meshes:
            grid = {"shard": self.count} if replicas == 1 else {"replicate": replicas, "shard": self.count // replicas}
            self._meshes[replicas] = init_device_mesh("cpu", tuple(grid.values()), mesh_dim_names=tuple(grid))
        return self._meshes[replicas]
