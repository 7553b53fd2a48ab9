"""The process of all ranks: devices of Keras' distribution, which one program describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments
from frameworks.contract import Capability
from frameworks.jax.distributed.one_process import READINGS, AllRanks
from frameworks.jax.keras.distributions import divided
from frameworks.jax.keras.framework import KerasFramework
from frameworks.jax.keras.mesh import DistributedTrainer


class KerasWorker(AllRanks):
    """The process of all ranks of Keras' distribution."""

    made = KerasFramework
    nothing_to_shard = (
        "a TensorLayout divides an axis into equal parts alone, and these ranks divide no axis of this model's "
        "variables evenly"
    )

    def divides(self, model: Model, ranks: Ranks) -> bool:
        return bool(divided(model.parameter_shapes(), ranks.shards))

    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> DistributedRanks:
        return DistributedRanks(self.framework.bound(DistributedTrainer(model, recipe, weights)))


class DistributedRanks:
    """The ranks of a run: joins their arguments and splits their results."""

    def __init__(self, run: DistributedTrainer) -> None:
        self.run = run

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with each rank's arguments; returns one result for each.

        Raises:
            Unsupported: RANKS_COLLECTIVES, EXPLICIT_UNSCALE, or what the run itself does not do.
        """
        run = self.run
        if verb in READINGS:
            return tuple(getattr(run.view_of_rank(rank), verb)() for rank in run.ranks)
        first = [each.arguments[0] for each in given if each.arguments]
        match verb:
            case "update_share":
                return run.update_parts(first)
            case "accumulate":
                return run.accumulate_parts(first)
            case "apply":
                return run.updates()
            case "gradients_share":
                return run.gradients_of_parts(first)
            case "apply_gradients":
                if given[0].named["unscale_calls"] is not None or given[0].named["discard"] or _injected(given):
                    raise run.refusal(Capability.EXPLICIT_UNSCALE)
                return run.feed_parts([own.arguments for own in given])
            case "predict" | "predict_averaged":
                return run.predictions(first[0], averaged=verb == "predict_averaged")
            case "resident_bytes":
                return tuple(run.resident_bytes(rank) for rank in run.ranks)
            case "collectives":
                raise run.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(run, verb)(*given[0].arguments, **given[0].named),) * len(given)


def _injected(given: Sequence[Arguments]) -> bool:
    return any(own.named["inject"] is not None for own in given)
