"""Faults of gradient accumulation in Paddle."""

from __future__ import annotations

from typing import Any

from fixtures.model import Batch
from frameworks.paddle import PaddleFramework
from frameworks.paddle.training.trainer import DygraphTrainer
from tools.faults import fault


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ClearsInsideWindow(PaddleFramework):
    """`clear_grad` is called before the backward pass of every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        accumulate = DygraphTrainer.accumulate

        def cleared(self: DygraphTrainer, batch: Batch, items: int) -> float:
            for share in self.shares:
                share.optimizer.clear_grad(set_to_zero=False)
            return accumulate(self, batch, items)

        DygraphTrainer.accumulate = cleared
