"""Faults of gradient accumulation in PyTorch."""

from __future__ import annotations

from typing import Any

from frameworks.torch import TorchFramework
from frameworks.torch.training.trainer import TorchTrainer
from tools.faults import fault


@fault(
    "https://github.com/facebookresearch/mmf/pull/747",
    "accumulation.each-counts-once",
    "accumulation.equals-full-batch",
)
class ZeroesInsideWindow(TorchFramework):
    """`zero_grad` is called before the backward pass of every micro-batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        accumulate = TorchTrainer.accumulate

        def zeroed(self: TorchTrainer, *given: Any) -> float:
            self._empty()
            return accumulate(self, *given)

        TorchTrainer.accumulate = zeroed


@fault("https://github.com/huggingface/transformers/pull/34191", "accumulation.weighs-items")
class MeanOfMeans(TorchFramework):
    """Each micro-batch's loss is its own mean over the number of micro-batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        run = TorchTrainer._pass
        TorchTrainer._pass = lambda self, batch, _, scaler: run(
            self, batch, batch.items * self.recipe.accumulation, scaler
        )
