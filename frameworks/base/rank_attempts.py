"""Attempts of ranks, shared by all frameworks with ranks: one small experiment for each capability."""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Model
from fixtures.models import exact_linear, exact_stack, scalar
from fixtures.recipe import SGD, Adam, Ranks, Recipe, Sharding
from frameworks.base.rank_group import BaseRankGroup, window_across_ranks
from frameworks.contract import Attempt, Capability, RankFailed

MakeGroup = Callable[[Model, Recipe], BaseRankGroup]
"""Creates the ranks of a run without the adapter's guards."""

_MESHES: Mapping[Capability, Ranks] = {
    Capability.RANKS_REPLICATED: Ranks(2),
    Capability.RANKS_OPTIMIZER: Ranks(2, "optimizer"),
    Capability.RANKS_GRADIENTS: Ranks(2, "gradients"),
    Capability.RANKS_FULL: Ranks(2, "full"),
    Capability.RANKS_HYBRID: Ranks(4, "full", replicas=2),
}
OF_ONE_PLACE = frozenset({Capability.TRACE, Capability.SAVED_BYTES})
"""Capabilities without ranks only: a rank's pass covers only its own samples, and gathers weights."""


def with_ranks(
    attempts: Mapping[Capability, Attempt], make: MakeGroup, always: Ranks | None, *, reshaped: Sharding = "full"
) -> Mapping[Capability, Attempt]:
    """Attempts if every recipe has ranks: the remaining ones without ranks, and one for each capability of ranks.

    Args:
        always: the mode's ranks, None for none.
        reshaped: sharding level of a run that another number of ranks restores.
    """
    hidden = OF_ONE_PLACE if always is not None else frozenset()
    return {c: attempt for c, attempt in attempts.items() if c not in hidden} | _attempts(make, reshaped)


def _attempts(make: MakeGroup, reshaped: Sharding) -> dict[Capability, Attempt]:
    """Attempts for each capability of ranks."""
    levels: dict[Capability, Attempt] = {c: partial(_shards, make, ranks) for c, ranks in _MESHES.items()}
    return levels | {
        Capability.RANKS_LOW_REDUCTION: partial(_reduces_low, make),
        Capability.RANKS_EMPTY: partial(_takes_nothing, make),
        Capability.RANKS_COLLECTIVES: partial(_counts, make),
        Capability.RANKS_LOST: partial(_loses_one, make),
        Capability.RANKS_RESHAPE: partial(_reshapes, make, reshaped),
    }


def _train_ranks(make: MakeGroup, ranks: Ranks) -> BaseRankGroup:
    """A rank group after one update with different samples on every rank."""
    rank_group = make(exact_stack(), Recipe(Adam(), ranks=ranks))
    rank_group.update(window_across_ranks((exact_batch(8),), ranks.count))
    return rank_group


def _shards(make: MakeGroup, ranks: Ranks) -> bool:
    """Whether ranks hold only a part of what the level shards."""
    size = 4 * sum(int(np.prod(shape)) for shape in exact_stack().parameter_shapes().values())
    copy = {"parameter": size, "gradient": size, "optimizer": 2 * size}
    sizes = _train_ranks(make, ranks).resident_bytes()
    below = {kind: size if kind in ranks.sharded else size + 1 for kind, size in copy.items()}
    return all(0 < own[kind] < below[kind] for own in sizes for kind in copy)


def _weight(rank_group: BaseRankGroup) -> Array:
    weight: Array = rank_group.states()[0]["parameter/0.output.weight"]
    return weight


def _reduces_low(make: MakeGroup) -> bool:
    """The sum of 1 and 2^-9 is not representable in bfloat16."""
    rank_group = make(scalar(0.0), Recipe(SGD(1.0), ranks=Ranks(2, reduce="bfloat16")))
    rank_group.apply_gradients([[{"0.output.weight": np.full((1, 1), 2.0 * g, np.float32)}] for g in (1.0, 2.0**-9)])
    return float(_weight(rank_group)[0, 0]) == -1.0


def _takes_nothing(make: MakeGroup) -> bool:
    """A rank without samples leaves the gradient to the other."""
    rank_group = make(exact_linear(), Recipe(SGD(0.5), ranks=Ranks(2)))
    before = _weight(rank_group)
    updates = rank_group.update(window_across_ranks((exact_batch(1),), 2))
    return not any(own.skipped for own in updates) and not np.array_equal(before, _weight(rank_group))


def _counts(make: MakeGroup) -> bool:
    rank_group = _train_ranks(make, Ranks(2))
    return rank_group.collectives()[0]["gradients"] == len(exact_stack().parameter_shapes())


def _loses_one(make: MakeGroup) -> bool:
    """Whether the other ranks survive if one exits."""
    rank_group = make(exact_linear(), Recipe(SGD(0.5), ranks=Ranks(2)))
    try:
        rank_group.fail_rank(window_across_ranks((exact_batch(8),), 2), 1, "exits")
    except RankFailed as failed:
        return failed.ranks == (1,)
    return False


def _reshapes(make: MakeGroup, level: Sharding) -> bool:
    """Whether four ranks restore the weights that two ranks saved."""
    saved = _train_ranks(make, Ranks(2, level))
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder))
        expected = saved.states()[0]
        loaded = make(exact_stack(), Recipe(Adam(), ranks=Ranks(4, level)))
        loaded.restore(Path(folder))
        state = loaded.states()[0]
    return all(np.array_equal(state[name], expected[name]) for name in expected if name.startswith("parameter/"))
