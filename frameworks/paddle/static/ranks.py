"""Ranks of the static graph: their trainers, processes and checkpoints of several ranks in one folder.

Shared variables are saved once. Each rank saves its random stream and its running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import paddle
from paddle import distributed
from paddle.distributed import fleet

from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Capability, Update
from frameworks.paddle.distributed import PaddleWorker, file_of, read_parts, run_collectively
from frameworks.paddle.static.framework import StaticFramework
from frameworks.paddle.static.programs import MASTER, BuiltProgram, Reduction, reduced_bytes
from frameworks.paddle.static.trainer import StaticTrainer
from frameworks.paddle.training.optimizers import UpdateAfterLosses

_OWN = ("count", "buffers", "generator")
_COUNTERS = ("schedule", "steps", "beta1_pow", "beta2_pow")


class StaticRankTrainer(StaticTrainer):
    """One rank's part of a run. Methods that take data, `save` and `restore` are collective."""

    def __init__(self, ranks: Ranks, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> None:
        if ranks.level != "replicated":
            _shard()
        super().__init__(model, recipe, weights, Reduction(ranks))
        self.ranks = ranks
        self._gradient_bytes = self._reduced = 0

    def anew(self) -> StaticRankTrainer:
        resumed = StaticRankTrainer(self.ranks, self.model, self.recipe, self.model.weights(self.recipe.seed))
        resumed.declares = self.declares
        return resumed

    def accumulate(self, batch: Batch, items: int) -> float:
        if self.pending is not None:
            raise self.refusal(Capability.ACCUMULATION)
        return self._update_by(batch, items)

    def update_share(self, window: Window, items: int) -> Update:
        """Makes one update from this rank's window; all ranks' windows hold `items` items and are equally long."""
        if len(window) != 1:
            raise self.refusal(Capability.ACCUMULATION)
        self.accumulate(window[0], items)
        return self.apply()

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        """`gradients` of all ranks' windows together, of which this rank has one."""
        return self._gradients(window, items)

    def _present(self, heads: tuple[str, ...]) -> tuple[str, ...]:
        """The heads with targets on any rank: every rank's program has to reduce the same gradients."""
        every = self.programs.heads
        if len(every) < 2 or self.ranks.count < 2:
            return heads
        with paddle.base.dygraph.guard():
            used = paddle.to_tensor([float(head in heads) for head in every])
            distributed.all_reduce(used)
            return tuple(head for head, count in zip(every, used.numpy(), strict=True) if count)

    def _run(self, built: BuiltProgram, feed: Mapping[str, Array]) -> tuple[float, UpdateAfterLosses]:
        reduced = reduced_bytes(built.program)
        self._gradient_bytes, self._reduced = sum(reduced), self._reduced + len(reduced)
        return super()._run(built, feed)

    def resident_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds: "parameter", "gradient" (of the last window), "optimizer", "buffer"."""
        slots = [value for name, value in self.optimizer_state().items() if not name.startswith(_COUNTERS)]
        masters = [self.store.read(name) for name in self.store.initial if MASTER in name]
        return {
            "parameter": sum(value.nbytes for value in self.parameters().values()),
            "gradient": self._gradient_bytes,
            "optimizer": sum(value.nbytes for value in [*slots, *masters]),
            "buffer": sum(value.nbytes for value in self.buffers().values()),
        }

    def collectives(self) -> dict[str, int]:
        """The numbers of collective operations in the programs that ran since the last call."""
        reduced, self._reduced = self._reduced, 0
        return {"gradients": reduced}

    def save(self, path: Path) -> None:
        """Writes into a folder that all ranks share; OSError on every rank, if one of them cannot write."""
        run_collectively(lambda: self._write(path), self.ranks.count, OSError, f"{path} cannot be written")

    def _write(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        rank = distributed.get_rank()
        if rank == 0:
            super().save(path)
        own = {"count": self.ranks.count, "buffers": self.buffers(), "generator": self.stream.state}
        paddle.save(own, str(file_of(path, rank)))

    def restore(self, path: Path) -> None:
        """Restores a checkpoint of any number of ranks; an additional rank begins with rank 0's own state.

        ValueError on every rank, if a rank cannot read a file.
        """
        refused = f"{path} cannot be loaded"
        resumed = run_collectively(lambda: self._load_rank(path), self.ranks.count, ValueError, refused)
        vars(self).update(vars(resumed))

    def _load_rank(self, path: Path) -> StaticTrainer:
        resumed = self.load_run(path)
        rank, own = distributed.get_rank(), read_parts(file_of(path, 0), _OWN, return_numpy=True)
        if 0 < rank < own["count"]:
            own = read_parts(file_of(path, rank), _OWN, return_numpy=True)
        for name, value in own["buffers"].items():
            resumed.store.write(self.stored_names[f"buffer/{name}"], value)
        resumed.stream.state = own["generator"]
        return resumed


def _shard() -> None:
    """Shards by fleet, as documented for programs of the static graph.

    Raises:
        TypeError: the program is of the new IR.
    """
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    fleet.init(is_collective=True, strategy=strategy)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        loss = paddle.nn.Linear(2, 1)(paddle.static.data("x", [1, 2], "float32")).sum()
        fleet.distributed_optimizer(paddle.optimizer.Adam(), strategy=strategy).minimize(loss, startup)


class StaticMember(PaddleWorker):
    """One rank's process in the process group; creates the rank's trainers of the static graph."""

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        super().__init__(rank, count, folder, device, mode)
        self._framework = StaticFramework(device, mode)

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> StaticRankTrainer:  # type: ignore[override]
        """This rank's part of a new run."""
        run = StaticRankTrainer(recipe.ranks or Ranks(self.count), model, recipe, weights)
        return self._framework.bind(run)

    def barrier(self) -> None:
        with paddle.base.dygraph.guard():
            super().barrier()
