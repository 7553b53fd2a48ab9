"""Faults of data parallel training in Paddle."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Update
from frameworks.paddle import PaddleFramework
from frameworks.paddle.distributed.ranks import PaddleWorker, RankTrainer
from frameworks.paddle.training.scaler import UpdateAfterLosses
from tools.faults import fault


class _Worker(PaddleWorker):
    """A member whose trainers are of another class."""

    kind: type[RankTrainer]

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array]) -> RankTrainer:
        return self.kind(recipe.ranks or Ranks(self.count), model, recipe, weights, forced=False)


class _OwnItems(RankTrainer):
    def _own(self, window: Window) -> int:
        return sum(batch.items for batch in window) * self.ranks.count or 1

    def update_share(self, window: Window, items: int) -> Update:
        return super().update_share(window, self._own(window))

    def gradients_share(self, window: Window, items: int) -> dict[str, Array]:
        return super().gradients_share(window, self._own(window))


class OwnItemsWorker(_Worker):
    kind = _OwnItems


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class DividesByOwnItems(PaddleFramework):
    """Each rank's loss is the mean over its own items, and `DataParallel` averages the ranks' means."""

    member = "tools.faults.adapters.paddle.sharding:OwnItemsWorker"


class _Unsynchronised(RankTrainer):
    def _micro_batch(self, *, last: bool) -> AbstractContextManager[None]:
        return super()._micro_batch(last=False)


class UnsynchronisedWorker(_Worker):
    kind = _Unsynchronised


@fault(
    "https://github.com/modelscope/FunASR/pull/3472",
    "sharding.replicas-equal",
    "sharding.equals-whole",
    "sharding.accumulates",
)
class NeverLeavesNoSync(PaddleFramework):
    """A window's last micro-batch is inside `no_sync` as all others are, so that no gradient is reduced."""

    member = "tools.faults.adapters.paddle.sharding:UnsynchronisedWorker"


class _StepsPerRank(RankTrainer):
    def _step(self, *, unscaled: bool = False) -> UpdateAfterLosses:
        done = super()._step(unscaled=unscaled)
        for share in self.shares:
            for _ in range(self.ranks.count - 1 if share.scheduler is not None else 0):
                share.scheduler.step()  # type: ignore[union-attr]
        return done


class StepsPerRankWorker(_Worker):
    kind = _StepsPerRank


@fault("https://github.com/tracel-ai/burn/issues/5695", "sharding.schedule-counts-updates")
class SchedulerStepsForEachRank(PaddleFramework):
    """The learning-rate schedule moves once for each rank with every update."""

    member = "tools.faults.adapters.paddle.sharding:StepsPerRankWorker"
