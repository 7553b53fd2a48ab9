"""Rank groups of TensorFlow: logical devices of one CPU, in a separate process."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import BaseRankGroup, ranks_of
from frameworks.contract import Capability, Unsupported
from frameworks.ranks import RemoteRankGroup, worker_group_of

_MEMBER = "frameworks.tf.distributed:MirroredWorker"
_MERGES_IN_A_GRAPH = (
    "Keras ends a window inside a conditional, where tf.distribute refuses the optimizer's merge_call in a tf.function"
)


def rank_group(mode: str, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> BaseRankGroup:
    """The ranks of a new run, each a replica on a logical CPU; in mode "eager" their steps are no `tf.function`.

    Raises:
        Unsupported: the replicas of a `tf.function` do not do what the recipe asks for.
        ValueError: the recipe names no ranks.
    """
    if recipe.accumulation > 1 and mode != "eager":
        raise Unsupported(Capability.ACCUMULATION, _MERGES_IN_A_GRAPH, partial(_trains, mode, model, recipe))
    return start_rank_group(mode, model, recipe, weights)


def start_rank_group(
    mode: str, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None
) -> BaseRankGroup:
    """`rank_group` without known failures."""
    count = ranks_of(recipe).count
    worker_group = worker_group_of(_MEMBER, count, "cpu", "eager" if mode == "eager" else "graph", {}, 1)
    return RemoteRankGroup(worker_group, worker_group.make([(model, recipe, weights)]))


def _trains(mode: str, model: Model, recipe: Recipe) -> bool:
    """Whether a refused update succeeds if tried without the adapter's guards."""
    run = start_rank_group(mode, model, recipe)
    gradients = {name: np.ones(shape, np.float32) for name, shape in model.parameter_shapes().items()}
    return not any(update.skipped for update in run.apply_gradients([[gradients] * recipe.accumulation] * run.count))
