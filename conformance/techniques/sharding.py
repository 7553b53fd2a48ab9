"""Meshes of ranks, unequal splits of a batch, and the state that all ranks share."""

from collections.abc import Mapping, Sequence

import pytest

from conformance.checks.evidence import difference
from conformance.checks.subject import Subject, supports
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Capability, RankGroup, Trainer

PAIRS: Mapping[str, Ranks] = {
    "replicated": Ranks(2),
    "optimizer": Ranks(2, "optimizer"),
    "gradients": Ranks(2, "gradients"),
    "full": Ranks(2, "full"),
}
"""Meshes of two ranks, from replicated to fully sharded."""

FOURS = (Ranks(4), *(Ranks(4, "full", replicas=n) for n in (1, 2, 4)), Ranks(4, "gradients", replicas=2))
"""Meshes of four ranks, including hybrid meshes of all shapes."""

LEVEL = pytest.mark.parametrize("ranks", PAIRS.values(), ids=PAIRS)
RANK = pytest.mark.parametrize("rank", [0, 1], ids=["rank-0", "rank-1"])
OWN = ("random/", "buffer/", "accumulator/")
"""Prefixes of state that may differ between ranks."""


def select_meshes(subject: Subject, meshes: Sequence[Ranks]) -> list[Ranks]:
    """Return the meshes that the framework declares."""
    return [ranks for ranks in meshes if supports(subject.framework, *Capability.of_ranks(ranks))]


def split_across_ranks(batch: Batch, *sizes: int) -> list[Window]:
    """Return a window of one micro-batch for each rank: consecutive parts of these sizes."""
    return [(part,) for part in batch.split(*sizes)]


def windows_of(*windows: Sequence[Window]) -> list[Window]:
    """Return a window for each rank that joins its micro-batches in all of these windows."""
    return [tuple(batch for window in own for batch in window) for own in zip(*windows, strict=True)]


def make_single_run(
    subject: Subject, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
) -> Trainer:
    """Return a run without ranks, whatever the mode."""
    return subject.framework.trainer(model, recipe.replace(ranks=None, seed=recipe.seed + subject.seed), weights)


def list_by_rank(
    ranks: Ranks, rank: int, own: Mapping[str, Array], others: Mapping[str, Array]
) -> list[Mapping[str, Array]]:
    """Return arguments by rank: one rank gets its own, all others the same."""
    return [own if index == rank else others for index in range(ranks.count)]


def weights(state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the model's weights in a state, by parameter name."""
    return {name.removeprefix("parameter/"): value for name, value in state.items() if name.startswith("parameter/")}


def describe_difference(rank_group: RankGroup) -> str:
    """Return in words how the first rank that differs from rank 0 does so; "" if all agree."""
    shared = [{name: v for name, v in state.items() if not name.startswith(OWN)} for state in rank_group.states()]
    for rank, state in enumerate(shared[1:], 1):
        if text := difference(state, shared[0]):
            return f"rank {rank} differs from rank 0: {text}"
    return ""
