"""One rank of a run of several Paddle processes: a member of their group, and its trainers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import paddle
from paddle import distributed
from paddle.base import core

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.base import MicroBatch
from frameworks.contract import Capability, Unsupported, Update
from frameworks.paddle.core.losses import BatchTensors
from frameworks.paddle.core.modes import FORCED
from frameworks.paddle.declarations import NO_COUNT
from frameworks.paddle.distributed import rank_checkpoint
from frameworks.paddle.distributed.data_parallel import Replicas, shard
from frameworks.paddle.distributed.rendezvous import store
from frameworks.paddle.training.optimizers import slots
from frameworks.paddle.training.scaler import UpdateAfterLosses
from frameworks.paddle.training.trainer import DygraphTrainer
from frameworks.ways import required

_COUNTERS = ("schedule", "beta1_pow", "beta2_pow")


def _bytes(arrays: Mapping[str, Array]) -> int:
    return sum(value.nbytes for name, value in arrays.items() if not name.startswith(_COUNTERS))


class RankTrainer(DygraphTrainer):
    """One rank's part of a run. Methods that take data, `save` and `restore` are collective."""

    def __init__(
        self, ranks: Ranks, model: Model, recipe: Recipe, weights: Mapping[str, Array], *, forced: bool
    ) -> None:
        super().__init__(model, recipe, weights, forced=forced)
        self.ranks = ranks
        self._gradient_bytes = 0
        with self.stream.apart():
            if ranks.level != "replicated":
                shard(self.network, self.shares, ranks.level)
            with required("paddle", recipe, "data-parallel"):
                self._replicas = Replicas(self.network, super()._losses, super()._fed, recipe.way("data-parallel"))

    def anew(self) -> RankTrainer:
        start = self.model.weights(self.recipe.seed)
        return RankTrainer(self.ranks, self.model, self.recipe, start, forced=self.forced)

    # forward and backward

    def _batch(self, batch: Batch) -> BatchTensors:
        """Without samples the inputs ask for a gradient: matmul's, which no input wants, raises for no rows."""
        tensors = super()._batch(batch)
        if not len(batch) and not self.model.integer_inputs:
            tensors.inputs.stop_gradient = False
        return tensors

    def _losses(self, tensors: BatchTensors) -> list[Any]:
        return self._replicas.losses(tensors)

    def _fed(self, given: Mapping[str, Any]) -> Any:
        return self._replicas.fed(given)

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return self._replicas.micro_batch(last=last)

    def _share(self, total: Any, items: int) -> Any:
        """The reduction is a mean over ranks; what it divides by is multiplied in before."""
        return total * self.ranks.count / items

    def accumulate(self, batch: Batch, items: int) -> float:
        with self._running(), self._micro_batch(last=True):
            return self._enter(batch, self._backward(batch, items, self.scaler))

    def _enter(self, batch: Batch, total: float) -> float:
        """Records a micro-batch with this rank's own items."""
        return self.ledger.add(MicroBatch(total, batch.items), self.ledger.items + batch.items)

    def update_share(self, window: Window, items: int) -> Update:
        """One update from this rank's window; all ranks' windows hold `items` items and are equally long."""
        with self._running():
            totals = self._passes(window, items, self.scaler)
        for batch, total in zip(window, totals, strict=True):
            self._enter(batch, total)
        return self.apply()

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        """`gradients` of all ranks' windows together, of which this rank has one."""
        return self._gradients(window, items)

    def _step(self, *, unscaled: bool = False) -> UpdateAfterLosses:
        self._gradient_bytes = _bytes(self.accumulator())
        return super()._step(unscaled=unscaled)

    # what can be seen

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: "parameter", "gradient" (of the last window), "optimizer", "buffer"."""
        return {
            "parameter": _bytes(self.parameters()),
            "gradient": self._gradient_bytes,
            "optimizer": sum(_bytes(slots(share, self.network.named)) for share in self.shares),
            "buffer": _bytes(self.buffers()),
        }

    def collectives(self) -> dict[str, int]:
        raise Unsupported(Capability.RANKS_COLLECTIVES, NO_COUNT)

    # the whole run

    def save(self, path: Path) -> None:
        rank_checkpoint.save(self, self.ranks.count, path)

    def restore(self, path: Path) -> None:
        rank_checkpoint.restore(self, self.ranks.count, path)


class PaddleWorker:
    """One rank's process in the process group; creates the rank's trainers.

    Args:
        folder: empty at first and the same for all ranks.
        device: "cpu".
        mode: "dygraph", or the one whose scaler is forced.
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
                PADDLE_TRAINER_ID="1",  # the rank 0 would start a store of Paddle's
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
