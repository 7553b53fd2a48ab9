"""What a run holds between updates, by kind, and how often its ranks reduce: counted, so that it is the same again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from fixtures.arrays import Array
from fixtures.model import Model, Window
from fixtures.recipe import Recipe
from frameworks.base import dealt_window
from frameworks.contract import Capability, Framework, Trainer


@dataclass(frozen=True)
class Held:
    """What one side holds.

    Attributes:
        bytes: by kind ("parameter", "gradient", "optimizer"), those of the rank that holds most of the kind.
        reduced: parameters whose gradient a rank brings to a reduction in a window; None where nobody counts them.
    """

    bytes: Mapping[str, int]
    reduced: int | None = None


def held_in_one_place(trainer: Trainer, window: Window) -> Held:
    """What a run without ranks holds: whole arrays, as they are read; of the optimizer its moments."""
    parameters = trainer.parameters()
    kinds = (
        ("parameter", parameters),
        ("gradient", trainer.gradients(window)),
        ("optimizer", dict(_moments(trainer.optimizer_state(), parameters))),
    )
    return Held({kind: sum(value.nbytes for value in arrays.values()) for kind, arrays in kinds})


def _moments(state: Mapping[str, Array], parameters: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """What the optimizer keeps of each parameter; counters are none of that, and an average is no moment.

    An 8-bit moment counts as its codes and absmax values, not as the values that they encode.
    """
    for name, value in state.items():
        slot, _, parameter = name.partition("/")
        coded = f"codes/{name}" in state or slot == "average"
        if slot in ("codes", "absmax") or (
            not coded and parameter in parameters and value.shape == parameters[parameter].shape
        ):
            yield name, value


def away_in_an_update(trainer: Trainer, window: Window) -> dict[str, int]:
    """Bytes by offloaded kind that are away after one more update; of activations those that left during it."""
    trainer.offloaded()
    trainer.update(window)
    return trainer.offloaded()


def held_by_ranks(framework: Framework, model: Model, recipe: Recipe, window: Window) -> Held:
    """What the ranks of a new run hold after an update from this window, which is dealt out to them."""
    with closing(framework.company(model, recipe)) as company:
        company.update(dealt_window(window, company.count))
        held = company.bytes_held()
        most = {kind: max(own[kind] for own in held) for kind in held[0] if kind != "buffer"}
        if not framework.declares(Capability.RANKS_COLLECTIVES).supported:
            return Held(most)
        return Held(most, max(counted["gradients"] for counted in company.collectives()))
