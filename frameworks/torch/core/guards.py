"""Attempts that leave the process as it was."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from frameworks.contract import Attempt, Capability

Probe = Callable[[str], bool]
"""Attempt on a device."""
Guard = Callable[[], AbstractContextManager[Any]]


def guarded(probe: Probe, device: str, *guards: Guard) -> Attempt:
    """The attempt on this device, inside scopes that restore what it changes."""
    return partial(_inside, probe, device, guards)


def all_guarded(probes: Mapping[Capability, Probe], device: str, *guards: Guard) -> dict[Capability, Attempt]:
    """As `guarded`, for each capability."""
    return {capability: guarded(probe, device, *guards) for capability, probe in probes.items()}


def _inside(probe: Probe, device: str, guards: tuple[Guard, ...]) -> bool:
    with ExitStack() as scopes:
        for guard in guards:
            scopes.enter_context(guard())
        return probe(device)
