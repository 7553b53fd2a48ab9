"""Rank groups of Paddle."""

from collections.abc import Mapping

import paddle

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseRankGroup, ranks_of
from frameworks.ranks import Limits, RemoteRankGroup, worker_group_of

_MEETS_IN = "3.3."
"""Versions whose clients are known to understand the ranks' store (`frameworks.paddle.distributed.rendezvous`)."""

_LIMITS = Limits(group_s=30.0)
"""Timeout of gloo's operations, which Paddle does not let users change."""


def has_ranks(device: str) -> bool:
    """Whether this version of Paddle has ranks of the suite's here."""
    return device == "cpu" and paddle.__version__.startswith(_MEETS_IN)


def rank_group(
    model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None, *, member: str, mode: str
) -> BaseRankGroup:
    """The ranks of a new run, each a process on the CPU.

    Args:
        member: the class of each rank's member, as package.module:Class.
        mode: what each rank is in, one of those of the dynamic graph without ranks.
    Raises:
        Unsupported: Paddle's ranks do not do what the recipe asks for.
        ValueError: the recipe names no ranks.
    """
    count = ranks_of(recipe).count
    start = model.weights(recipe.seed) if weights is None else weights
    worker_group = worker_group_of(member, count, "cpu", mode, {}, limits=_LIMITS)
    return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, start)] * count))
