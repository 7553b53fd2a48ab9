"""One rank of a run of several PyTorch processes: a member of their process group, and its trainers."""

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import MicroBatch
from frameworks.contract import Gradients, Update
from frameworks.ranks import group_seconds
from frameworks.torch.core.devices import DTYPES, to_array, to_tensor
from frameworks.torch.core.layers import Network, parameters_by_name
from frameworks.torch.distributed.rank_checkpoint import RankRun
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
from frameworks.ways import require_calls


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
