"""Resident bytes of a run between updates, by kind, and the number of reductions of its ranks; both are exact
counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.base import window_across_ranks
from frameworks.contract import Capability, Framework, Trainer


@dataclass(frozen=True)
class ResidentBytes:
    """Resident bytes and reductions of one side.

    Attributes:
        bytes: by kind ("parameter", "gradient", "optimizer"), of the rank with the most.
        reduced: number of gradients that a rank reduces in a window; None if not counted.
    """

    bytes: Mapping[str, int]
    reduced: int | None = None


def process_resident_bytes(trainer: Trainer, window: Window) -> ResidentBytes:
    """Resident bytes of a run without ranks: whole arrays, and the optimizer's moments."""
    parameters = trainer.parameters()
    kinds = (
        ("parameter", parameters),
        ("gradient", trainer.gradients(window)),
        ("optimizer", dict(_moments(trainer.optimizer_state(), parameters))),
    )
    return ResidentBytes({kind: sum(value.nbytes for value in arrays.values()) for kind, arrays in kinds})


def _moments(state: Mapping[str, Array], parameters: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """The optimizer's moments of each parameter, without counters and averages.

    An 8-bit moment counts as its codes and absmax values, not as the values that they encode.
    """
    for name, value in state.items():
        slot, _, parameter = name.partition("/")
        coded = f"codes/{name}" in state or slot == "average"
        if slot in ("codes", "absmax") or (
            not coded and parameter in parameters and value.shape == parameters[parameter].shape
        ):
            yield name, value


def offloaded_in_an_update(trainer: Trainer, window: Window) -> dict[str, int]:
    """Offloaded bytes by kind after one more update; for activations, bytes offloaded during it."""
    trainer.offloaded()
    trainer.update(window)
    return trainer.offloaded()


def rank_resident_bytes(framework: Framework, model: Model, recipe: Recipe, window: Window) -> ResidentBytes:
    """Resident bytes of a new run's ranks after an update from this window, split across them."""
    with closing(framework.rank_group(model, recipe)) as rank_group:
        rank_group.update(window_across_ranks(window, rank_group.count))
        by_rank = rank_group.resident_bytes()
        most = {kind: max(own[kind] for own in by_rank) for kind in by_rank[0] if kind != "buffer"}
        if not framework.declares(Capability.RANKS_COLLECTIVES).supported:
            return ResidentBytes(most)
        return ResidentBytes(most, max(counted["gradients"] for counted in rank_group.collectives()))
