"""What is seen to leave a device, by one small experiment an offload, alike for every framework that offloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from fixtures.data import exact_batch
from fixtures.model import Model, Window
from fixtures.models import exact_stack
from fixtures.recipe import Adam, Offload, Recipe
from frameworks.contract import Attempt, Capability, Update


class OffloadedRun(Protocol):
    """What is asked of a run here."""

    def update(self, window: Window) -> Update: ...

    def offloaded(self) -> dict[str, int]: ...


Make = Callable[[Model, Recipe], OffloadedRun]
"""Makes a run without an adapter's guards."""


def offload_attempts(make: Make, offloads: Sequence[Offload]) -> dict[Capability, Attempt]:
    """A try of each capability that one of these offloads asks for."""
    return {c: partial(_leaves, make, offload) for offload in offloads for c in Capability.of_offload(offload)}


def _leaves(make: Make, offload: Offload) -> bool:
    """Whether bytes of every kind are away after an update, or have been during it."""
    run = make(exact_stack(), Recipe(Adam(), offload=offload))
    run.update((exact_batch(8),))
    away = run.offloaded()
    return set(away) == set(offload.what) and all(size > 0 for size in away.values())
