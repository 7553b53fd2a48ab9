"""The process of all ranks: devices of Keras' distribution, which one program describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.base import Arguments
from frameworks.contract import Capability, Unsupported
from frameworks.jax.keras.distributions import divided
from frameworks.jax.keras.framework import KerasFramework
from frameworks.jax.keras.mesh import DistributedTrainer
from frameworks.jax.rank_probes import shards_uneven_rows

NOTHING_TO_SHARD = (
    "a TensorLayout divides an axis into equal parts alone, and these ranks divide no axis of this model's variables "
    "evenly"
)
_READINGS = frozenset(
    {
        "parameters",
        "master_parameters",
        "optimizer_state",
        "buffers",
        "scaler_state",
        "scaler_settings",
        "accumulator",
        "random_state",
        "state",
    }
)


class KerasMember:
    """The process of all ranks.

    Raises:
        ValueError: JAX has too few devices: XLA_FLAGS must create them before the import.
    """

    def __init__(self, rank: int, count: int, folder: Path, device: str, mode: str) -> None:
        self.framework = KerasFramework(device, mode)
        self.count = count
        if rank or len(jax.devices()) < count:
            raise ValueError(f"devices for Keras' ranks: got {len(jax.devices())}, want {count}")

    def trainer(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None = None) -> DistributedRanks:
        """A new run of all ranks.

        Raises:
            Unsupported: the level shards nothing of this model.
            ValueError: the recipe is for another number of ranks.
        """
        ranks = recipe.ranks
        if ranks is None or ranks.count != self.count:
            raise ValueError(f"ranks of the recipe: got {ranks}, want {self.count}")
        if ranks.shards > 1 and not divided(model.parameter_shapes(), ranks.shards):
            raise Unsupported(Capability.of_ranks(ranks)[0], NOTHING_TO_SHARD, shards_uneven_rows)
        return DistributedRanks(self.framework.bound(DistributedTrainer(model, recipe, weights)))

    def barrier(self) -> None:
        """Returns at once: all ranks are in this process."""


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
        if verb in _READINGS:
            return tuple(getattr(run.seen_by(rank), verb)() for rank in run.ranks)
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
            case "feed":
                if given[0].named["unscale_calls"] is not None or given[0].named["abandon"] or _poisoned(given):
                    raise run.refusal(Capability.EXPLICIT_UNSCALE)
                return run.feed_parts([own.arguments for own in given])
            case "predict" | "predict_averaged":
                return run.predictions(first[0], averaged=verb == "predict_averaged")
            case "bytes_held":
                return tuple(run.bytes_held(rank) for rank in run.ranks)
            case "collectives":
                raise run.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(run, verb)(*given[0].arguments, **given[0].named),) * len(given)


def _poisoned(given: Sequence[Arguments]) -> bool:
    return any(own.named["poison"] is not None for own in given)
