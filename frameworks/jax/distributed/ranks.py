"""The process of all ranks: several devices of JAX's, which one program describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Ranks, Recipe
from frameworks.base import Arguments
from frameworks.contract import Capability, Gradients, Update
from frameworks.jax.distributed.mesh import READINGS, AllRanks, MeshTrainer, gather_batch, gathered_window
from frameworks.jax.framework import JaxFramework
from frameworks.jax.training.offload import OffloadedTrainer
from frameworks.jax.training.steps import ShardingLayout, layout_of


class JaxWorker(AllRanks):
    """The process of all ranks of a mesh."""

    made = JaxFramework
    nothing_to_shard = (
        "jax.sharding.NamedSharding divides an axis into equal parts alone, and these ranks divide no axis of this "
        "model's arrays evenly"
    )

    def divides(self, model: Model, ranks: Ranks) -> bool:
        sharding = layout_of(ranks)
        return any(sharding.divided_axis(shape) is not None for shape in model.parameter_shapes().values())

    def begin(self, model: Model, recipe: Recipe, weights: Mapping[str, Array] | None) -> MeshRanks:
        assert recipe.ranks is not None
        trainer = MeshTrainer if recipe.offload is None else OffloadedMesh
        return MeshRanks(self.framework.bind(trainer(layout_of(recipe.ranks), model, recipe, weights)))


class OffloadedMesh(OffloadedTrainer, MeshTrainer):
    """A run on all devices of a mesh that offloads."""


class MeshRanks:
    """The ranks of a run: joins their arguments and splits their results."""

    def __init__(self, run: MeshTrainer) -> None:
        self.run = run
        self.sharding: ShardingLayout = run.sharding

    def ask(self, verb: str, arguments: Sequence[Arguments]) -> tuple[Any, ...]:
        """Calls a method with each rank's arguments; returns one result for each.

        Raises:
            Unsupported: RANKS_COLLECTIVES, or what the run itself does not do.
        """
        own = [entry.arguments for entry in arguments]
        if verb in READINGS:
            return tuple(getattr(self.run.view_of_rank(rank), verb)() for rank in self._ranks)
        match verb:
            case "update_share":
                self.run.update(gathered_window(self.run.model, [window for window, _ in own]))
                return self.run.updates
            case "accumulate":
                self.run.accumulate(gather_batch(self.run.model, [batch for batch, _ in own]), own[0][1])
                return self.run.last_loss()
            case "apply":
                self.run.apply()
                return self.run.updates
            case "gradients_share":
                result = self.run.window_gradients(gathered_window(self.run.model, [window for window, _ in own]))
                return tuple(self.run.of_trained(gradients) for gradients in self._by_rank(result))
            case "apply_gradients":
                return self._feed(arguments)
            case "predict":
                return self._by_rank(self.run.outputs(self.run.leaves, own[0][0]))
            case "predict_averaged":
                return self._by_rank(self.run.outputs(self.run.averages(), own[0][0]))
            case "resident_bytes":
                return tuple(self.run.resident_bytes(rank) for rank in self._ranks)
            case "offloaded_bytes":
                return (self.run.offloaded_bytes(), *({} for _ in self._ranks[1:]))
            case "collectives":
                raise self.run.refusal(Capability.RANKS_COLLECTIVES)
            case _:
                return (getattr(self.run, verb)(*own[0], **arguments[0].named),) * len(arguments)

    @property
    def _ranks(self) -> range:
        return range(self.sharding.ranks)

    def _by_rank(self, tree: Any) -> tuple[Any, ...]:
        return tuple(self.sharding.of_rank(tree, rank) for rank in self._ranks)

    def _feed(self, arguments: Sequence[Arguments]) -> tuple[Update, ...]:
        named = dict(arguments[0].named)
        inject = [entry.named["inject"] for entry in arguments]
        named["inject"] = self._stack_gradients(inject) if any(own is not None for own in inject) else None
        self.run.apply_gradients(
            *(self._stack_gradients(parts) for parts in zip(*(own.arguments for own in arguments), strict=True)),
            **named,
        )
        return self.run.updates

    def _stack_gradients(self, parts: Sequence[Gradients | None]) -> dict[str, Array]:
        """The ranks' gradients, (ranks, *shape) for each trained parameter; zeros where a rank has none."""
        mappings = [own or {} for own in parts]
        result = {}
        for name, shape in self.run.model.parameter_shapes().items():
            values = [own.get(name) for own in mappings]
            if name not in self.run.recipe.frozen and any(value is not None for value in values):
                result[name] = np.stack([np.zeros(shape) if v is None else np.asarray(v, np.float64) for v in values])
        return result
