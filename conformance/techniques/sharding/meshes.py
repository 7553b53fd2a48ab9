"""Meshes of ranks for the sharding suites, and unequal splits of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from conformance.checks.subject import Subject
from fixtures.arrays import Array
from fixtures.model import Batch, Model, Window
from fixtures.recipe import Ranks, Recipe
from frameworks.contract import Capability, Trainer

PAIRS: Mapping[str, Ranks] = {
    "replicated": Ranks(2),
    "optimizer": Ranks(2, "optimizer"),
    "gradients": Ranks(2, "gradients"),
    "full": Ranks(2, "full"),
}
"""Two ranks, from replicated to fully sharded."""

FOURS = (Ranks(4), *(Ranks(4, "full", replicas=n) for n in (1, 2, 4)), Ranks(4, "gradients", replicas=2))
"""Four ranks, including hybrid meshes of all shapes."""

each_level = pytest.mark.parametrize("ranks", PAIRS.values(), ids=PAIRS)


RANK = pytest.mark.parametrize("rank", [0, 1], ids=["rank-0", "rank-1"])


def declared(subject: Subject, meshes: Sequence[Ranks]) -> list[Ranks]:
    """The meshes that the framework declares."""
    there = subject.framework.declares
    return [ranks for ranks in meshes if all(there(c).supported for c in Capability.of_ranks(ranks))]


def shared(batch: Batch, *sizes: int) -> list[Window]:
    """A window of one micro-batch for each rank: consecutive parts of these sizes."""
    return [(part,) for part in batch.split(*sizes)]


def windows_of(*windows: Sequence[Window]) -> list[Window]:
    """A window for each rank, of its micro-batches in each of these windows."""
    return [tuple(batch for window in own for batch in window) for own in zip(*windows, strict=True)]


def one_place(subject: Subject, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> Trainer:
    """A run without ranks, whatever the mode."""
    return subject.framework.trainer(model, recipe.replace(ranks=None, seed=recipe.seed + subject.seed), weights)


def given_one(
    ranks: Ranks, rank: int, own: Mapping[str, Array], others: Mapping[str, Array]
) -> list[Mapping[str, Array]]:
    """Arguments by rank: one rank gets its own, all others the same."""
    return [own if each == rank else others for each in range(ranks.count)]


def weights(state: Mapping[str, Array]) -> dict[str, Array]:
    """The model's weights among a state, by parameter name."""
    return {name.removeprefix("parameter/"): value for name, value in state.items() if name.startswith("parameter/")}
