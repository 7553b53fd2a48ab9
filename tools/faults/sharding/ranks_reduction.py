"""Faults of what ranks add up: whose gradients, how often, by what they are divided, in which format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.contract import Update
from frameworks.reference.distributed.ranks import ReferenceRankGroup
from frameworks.reference.training.decisions import Arrays
from tools.faults import fault


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class EachRankDividesByItsOwnItems(ReferenceRankGroup):
    """Each rank normalises by its own items, and the ranks' means are averaged."""

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        own = [batch.items * self.count or items for batch in batches]
        return tuple(t.accumulate(batch, n) for t, batch, n in zip(self.trainers, batches, own, strict=True))


@fault("https://github.com/verl-project/verl/issues/7493", "sharding.equals-whole")
class ReplicasOfShardsTrainApart(ReferenceRankGroup):
    """In a hybrid mesh gradients are reduced over the ranks that share a copy, and not over the copies."""

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        if self.ranks.replicas == 1:
            return super().reduced(gradients)
        length = self.count // self.ranks.replicas
        return super().reduced(list(gradients[:length]) * self.ranks.replicas)


@fault("https://github.com/karpathy/build-nanogpt/pull/30", "sharding.one-reduction-per-window")
class EveryMicroBatchIsReduced(ReferenceRankGroup):
    """Reductions are not held back inside a window."""

    def _reduce(self) -> None:
        window = self.first.window.micro_batches
        super()._reduce()
        used = len(self.first.window.gradients)
        self.counted = [count + (window - 1) * used for count in self.counted]


@fault("https://github.com/deepspeedai/DeepSpeed/pull/6550", "sharding.accumulates")
class SecondWindowIsCopied(ReferenceRankGroup):
    """From the second window on a micro-batch's gradient is copied over the former ones of sharded gradients."""

    windows_before = 0

    def _backward(self, batches: Sequence[Batch], items: int) -> tuple[float, ...]:
        if self.windows_before and self.sharded("gradient"):
            for trainer in self.trainers:
                trainer.window.gradients = {}
        return super()._backward(batches, items)

    def apply(self) -> tuple[Update, ...]:
        self.windows_before += 1
        return super().apply()


@fault("https://github.com/pytorch/pytorch/issues/47260", "sharding.every-backward-counts")
class FirstBackwardIsReduced(ReferenceRankGroup):
    """With a backward pass for each loss, half of the gradient is each rank's own."""

    own: tuple[Arrays, ...] = ()

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        self.own = tuple(gradients)
        return super().reduced(gradients)

    def received(self, rank: int, reduced: Arrays) -> Arrays:
        if not self.recipe.separate_losses:
            return dict(reduced)
        return {name: (g + self.count * self.own[rank][name]) / 2.0 for name, g in reduced.items()}


@fault("https://github.com/pytorch/pytorch/pull/174862", "sharding.missing-gradient")
class UnusedIsKeptToItself(ReferenceRankGroup):
    """A parameter that some rank did not use is not reduced: who used it keeps its own gradient."""

    own: tuple[Arrays, ...] = ()

    def reduced(self, gradients: Sequence[Arrays]) -> Arrays:
        everywhere = set(gradients[0]).intersection(*gradients)
        self.own = tuple({n: g for n, g in each.items() if n not in everywhere} for each in gradients)
        return super().reduced([{n: g for n, g in each.items() if n in everywhere} for each in gradients])

    def received(self, rank: int, reduced: Arrays) -> Arrays:
        return dict(reduced) | self.own[rank]


@fault("https://github.com/pytorch/pytorch/issues/190626", "sharding.reduces-in-the-asked-format")
class ReducesInBfloat16(ReferenceRankGroup):
    """The sum over ranks is rounded to bfloat16, whatever was asked for."""

    def reduced_format(self, name: str) -> str:
        return "bfloat16"


@fault("https://github.com/pytorch/pytorch/pull/194628", "sharding.reduces-in-the-asked-format")
class ReducesInFloat32(ReferenceRankGroup):
    """A reduction in bfloat16 that was asked for is made in float32 without a word."""

    def reduced_format(self, name: str) -> str:
        return "float32"


@fault("https://github.com/pytorch/pytorch/issues/111138", "sharding.start")
class OthersDrawTheirOwnStart(ReferenceRankGroup):
    """The weights that the run was given reach rank 0 alone."""

    def starting_weights(self, rank: int, given: Mapping[str, Array]) -> Mapping[str, Array]:
        return given if rank == 0 else self.model.weights(self.recipe.seed + rank)
