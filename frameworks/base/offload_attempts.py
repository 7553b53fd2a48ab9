"""Attempts of offload, shared by all frameworks: one small experiment for each offload."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fixtures.data import exact_batch
from fixtures.model import Model, Window
from fixtures.models import exact_stack
from fixtures.recipe import Adam, Offload, Recipe
from frameworks.contract import Attempt, Capability, Update


class OffloadedRun(Protocol):
    """The methods of a run that are used here."""

    def update(self, window: Window) -> Update: ...

    def offloaded_bytes(self) -> dict[str, int]: ...


MakeOffloaded = Callable[[Model, Recipe], OffloadedRun]
"""Creates a run without the adapter's guards."""


def offload_attempts(make: MakeOffloaded, offloads: Sequence[Offload]) -> dict[Capability, Attempt]:
    """Attempts for each capability that one of these offloads needs."""
    return {c: partial(_leaves, make, offload) for offload in offloads for c in Capability.of_offload(offload)}


def _leaves(make: MakeOffloaded, offload: Offload) -> bool:
    """Whether bytes of every kind are offloaded after an update, or were during it."""
    run = make(exact_stack(), Recipe(Adam(), offload=offload))
    run.update((exact_batch(8),))
    away = run.offloaded_bytes()
    return set(away) == set(offload.what) and all(size > 0 for size in away.values())
