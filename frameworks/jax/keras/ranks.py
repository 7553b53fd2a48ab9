"""The process of all ranks: devices of Keras' distribution, which one program describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments
from frameworks.jax.distributed.mesh import READINGS, AllRanks
from frameworks.jax.keras.framework import KerasFramework
from frameworks.jax.keras.mesh import DistributedTrainer
from frameworks.jax.keras.steps import divide_axes
from frameworks.keras_common.run import KerasRanks


class KerasWorker(AllRanks):
    """The process of all ranks of Keras' distribution."""

    made = KerasFramework
    nothing_to_shard = (
        "a TensorLayout divides an axis into equal parts alone, and these ranks divide no axis of this model's "
        "variables evenly"
    )

    def divides(self, model: Model, ranks: Ranks) -> bool:
        return bool(divide_axes(model.parameter_shapes(), ranks.shards))

    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> DistributedRanks:
        run = self.framework.bind(DistributedTrainer(model, recipe, weights))
        return DistributedRanks(run, READINGS | {"resident_bytes"})


class DistributedRanks(KerasRanks):
    """The ranks of Keras' distribution."""

    run: DistributedTrainer

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        if verb == "predict_averaged":
            return self.run.by_each(self.run.averages(), arguments[0].arguments[0])
        return super().ask(verb, arguments)
