"""One rank of a run of several Paddle processes: a member of their group, its trainers, network and checkpoints.

A rank's own state: its random stream, its running statistics and the losses of its part of an open window.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import paddle
from paddle import distributed
from paddle.base import core
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients
from paddle.distributed.sharding import group_sharded_parallel

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import MicroBatch, same_parts
from frameworks.contract import Capability, Unsupported, Update
from frameworks.paddle.core.layers import BatchTensors, Network
from frameworks.paddle.core.settings import FORCED
from frameworks.paddle.framework import NO_COUNT
from frameworks.paddle.rendezvous import store
from frameworks.paddle.training.optimizers import UpdateAfterLosses, slots
from frameworks.paddle.training.trainer import FILE, DygraphTrainer
from frameworks.ways import require_calls

T = TypeVar("T")
Losses = Callable[[BatchTensors], list[Any]]
Fed = Callable[[Mapping[str, Any]], Any]

_SHARDED: Mapping[str, str] = {"optimizer": "os", "gradients": "os_g", "full": "p_g_os"}
_COUNTERS = ("schedule", "beta1_pow", "beta2_pow")
_OWN = ("count", "buffers", "window", "items", "generator", "calls")


def run_collectively(step: Callable[[], T], count: int, kind: type[Exception], what: str) -> T:
    """The result of `step`, after all ranks have run it; if it raises on one rank, every rank raises the same type."""
    results: list[T] = []
    problem = ""
    try:
        results.append(step())
    except Exception as error:  # whatever it is, every rank has to learn of it
        problem = " ".join(f"{type(error).__name__}: {error}".split())
    problems = [problem]
    if count > 1:
        problems = []
        with paddle.base.dygraph.guard():
            distributed.all_gather_object(problems, problem)
    for rank, text in enumerate(problems):
        if text:
            raise kind(f"{what}: rank {rank}: {text}")
    return results[0]


def file_of(path: Path, rank: int) -> Path:
    """The file of a rank's own state, in the folder of a checkpoint."""
    return path / f"rank-{rank}.pdparams"


def read_parts(file: Path, own: Sequence[str], **options: Any) -> dict[str, Any]:
    """The dictionary of parts in a file, read by `paddle.load` with further arguments.

    Raises:
        ValueError: Paddle cannot load it, or it holds other parts.
    """
    try:
        loaded = paddle.load(str(file), **options)
    except Exception as error:  # Paddle raises various types for an unreadable file
        raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    same_parts(file, loaded if isinstance(loaded, dict) else (), own)
    return loaded


def _window_of(every: Sequence[Mapping[str, Any]], rank: int) -> dict[str, Any]:
    """The losses of the open window; if the number of ranks has changed, rank 0 takes over those of all ranks."""
    micro_batches = list(zip(*(own["window"] for own in every), strict=True))
    if rank:
        return {"window": [[0.0, 0] for _ in micro_batches], "items": 0}
    summed = [[sum(total for total, _ in micro), sum(items for _, items in micro)] for micro in micro_batches]
    return {"window": summed, "items": sum(own["items"] for own in every)}


class _WithLosses(paddle.nn.Layer):
    """The network and its losses as one layer, since `DataParallel` reduces what its outputs depend on."""

    def __init__(self, network: Network, losses: Losses, fed: Fed) -> None:
        super().__init__()
        self.network = network
        self._losses, self._fed = losses, fed

    def forward(self, tensors: BatchTensors | None, gradients: Mapping[str, Any]) -> list[Any]:
        return [self._fed(gradients)] if tensors is None else self._losses(tensors)


def _count_bytes(arrays: Mapping[str, Array]) -> int:
    return sum(value.nbytes for name, value in arrays.items() if not name.startswith(_COUNTERS))


class RankTrainer(DygraphTrainer):
    """One rank's part of a run. Methods that take data, `save` and `restore` are collective.

    Gradients are reduced by `DataParallel` in its backward pass. It accepts no `PyLayer`, as used by reentrant
    recomputation. Then `fused_allreduce_gradients` reduces after the window's last micro-batch, as documented. Both
    compute the mean over the ranks.

    Raises:
        AssertionError: the state is sharded, on a CPU.
    """

    def __init__(
        self, ranks: Ranks, model: Model, recipe: Recipe, weights: Mapping[str, Array], *, forced: bool
    ) -> None:
        super().__init__(model, recipe, weights, forced=forced)
        self.ranks = ranks
        self._gradient_bytes = 0
        with self.stream.with_fresh_names():
            if ranks.level != "replicated":
                for share in self.shares:
                    _, share.optimizer, _ = group_sharded_parallel(self.network, share.optimizer, _SHARDED[ranks.level])
            with require_calls("paddle", recipe, "data-parallel"):
                self._replica = self._replicate(recipe.way("data-parallel"))

    def _replicate(self, way: str) -> Any:
        self._reduces_by_hand = self.network.is_reentrant or way == "reduced-by-hand"
        options: dict[str, Any] = {"find_unused_parameters": not self.network.is_reentrant and way != "all-used"}
        if way == "small-buffers":
            options |= {"comm_buffer_size": 1, "last_comm_buffer_size": 0.0001}
        return paddle.DataParallel(_WithLosses(self.network, super()._losses, super()._sum_products), **options)

    def anew(self) -> RankTrainer:
        start = self.model.weights(self.recipe.seed)
        return RankTrainer(self.ranks, self.model, self.recipe, start, forced=self.forced)

    # forward and backward

    def _batch(self, batch: Batch) -> BatchTensors:
        """The batch. Inputs without rows need a gradient: the backward of matmul raises otherwise."""
        tensors = super()._batch(batch)
        if not len(batch) and not self.model.integer_inputs:
            tensors.inputs.stop_gradient = False
        return tensors

    def _losses(self, tensors: BatchTensors) -> list[Any]:
        return self._replica(tensors, {})

    def _sum_products(self, gradients: Mapping[str, Any]) -> Any:
        return self._replica(None, gradients)[0]

    @contextmanager
    def _micro_batch(self, *, last: bool) -> Iterator[None]:
        """The context of forward and backward; after the last micro-batch every rank has the mean."""
        if last and not self._reduces_by_hand:
            yield
            return
        with self._replica.no_sync():
            yield
        if last:
            fused_allreduce_gradients(self._replica.parameters(), None)

    def _share(self, total: Any, items: int) -> Any:
        """The loss to back-propagate, multiplied by the number of ranks, by which the reduction divides."""
        return total * self.ranks.count / items

    def accumulate(self, batch: Batch, items: int) -> float:
        with self._running(), self._micro_batch(last=True):
            return self._enter(batch, self._backward(batch, items, self.scaler))

    def _enter(self, batch: Batch, total: float) -> float:
        """Records a micro-batch with this rank's own items."""
        return self.ledger.add(MicroBatch(total, batch.items), self.ledger.items + batch.items)

    def update_share(self, window: Window, items: int) -> Update:
        """Makes one update from this rank's window; all ranks' windows hold `items` items and are equally long."""
        with self._running():
            totals = self._passes(window, items, self.scaler)
        for batch, total in zip(window, totals, strict=True):
            self._enter(batch, total)
        return self.apply()

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        """`gradients` of all ranks' windows together, of which this rank has one."""
        return self._gradients(window, items)

    def _step(self, *, unscaled: bool = False) -> UpdateAfterLosses:
        self._gradient_bytes = _count_bytes(self.accumulator())
        return super()._step(unscaled=unscaled)

    # readings

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: "parameter", "gradient" (of the last window), "optimizer", "buffer"."""
        return {
            "parameter": _count_bytes(self.parameters()),
            "gradient": self._gradient_bytes,
            "optimizer": sum(_count_bytes(slots(share, self.network.named)) for share in self.shares),
            "buffer": _count_bytes(self.buffers()),
        }

    def collectives(self) -> dict[str, int]:
        raise Unsupported(Capability.RANKS_COLLECTIVES, NO_COUNT)

    # the whole run

    def save(self, path: Path) -> None:
        """Writes into a folder that all ranks share; OSError on every rank, if one of them cannot write."""
        run_collectively(lambda: self._write(path), self.ranks.count, OSError, f"{path} cannot be written")

    def _write(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        whole = self.parts()
        buffers = {name for name, _ in self.network.named_buffers()}
        own = {
            "count": self.ranks.count,
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

    def restore(self, path: Path) -> None:
        """Restores a checkpoint of any number of ranks; an additional rank begins with rank 0's own state.

        ValueError on every rank, if a rank cannot read a file, or Paddle refuses a part of it on a rank.
        """
        count, refused, resumed = self.ranks.count, f"{path} cannot be loaded", self.anew()
        saved = run_collectively(lambda: self._read(tuple(resumed.parts()), path), count, ValueError, refused)
        run_collectively(lambda: resumed.load(saved), count, ValueError, refused)
        vars(self).update(vars(resumed))

    def _read(self, names: Sequence[str], path: Path) -> dict[str, Any]:
        """The parts of this rank's run, by their names."""
        rank = distributed.get_rank()
        whole = read_parts(path / FILE, names)
        first = read_parts(file_of(path, 0), _OWN)
        if first["count"] == self.ranks.count:
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


class PaddleWorker:
    """One rank's process in the process group; creates the rank's trainers.

    Args:
        folder: initially empty folder shared by all ranks.
        device: "cpu".
        mode: "dygraph" or "dygraph-forced-scaler".
    Raises:
        RuntimeError: the rendezvous failed.
    """

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.rank, self.count, self._forced = rank, count, mode == FORCED
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        paddle.device.set_device(device)
        core.set_num_threads(1)
        if count > 1:
            self._join(Path(folder))

    def _join(self, folder: Path) -> None:
        """Calls `init_parallel_env` with an existing store, since Paddle's own listens on every interface."""
        with store(folder, serves=self.rank == 0) as endpoint:
            os.environ.update(
                PADDLE_DISTRI_BACKEND="gloo",
                PADDLE_TRAINERS_NUM=str(self.count),
                PADDLE_MASTER=endpoint,
                PADDLE_CURRENT_ENDPOINT=endpoint,
                PADDLE_TRAINER_ENDPOINTS=endpoint,
                PADDLE_TRAINER_ID="1",  # rank 0 would start Paddle's own store
            )
            core.create_or_get_global_tcp_store()
            os.environ["PADDLE_TRAINER_ID"] = str(self.rank)
            distributed.init_parallel_env()
            distributed.barrier()

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> RankTrainer:
        """This rank's part of a new run; a collective call."""
        return RankTrainer(recipe.ranks or Ranks(self.count), model, recipe, weights, forced=self._forced)

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.count > 1:
            distributed.barrier()
