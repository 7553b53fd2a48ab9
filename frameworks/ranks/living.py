"""Process-wide cache with at most one worker group."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from typing import Any

from frameworks.ranks.crew import Crew
from frameworks.ranks.limits import LIMITS, Limits

_living: dict[tuple[Any, ...], Crew] = {}


def crew_of(
    kind: str,
    count: int,
    device: str,
    mode: str,
    environment: Mapping[str, str],
    processes: int | None = None,
    *,
    limits: Limits = LIMITS,
) -> Crew:
    """The cached worker group with these properties, or a new one; arguments and errors as for `Crew`.

    A cached group with other properties is ended with all its runs.
    """
    key = (kind, count, device, mode, tuple(sorted(environment.items())), processes, limits)
    crew = _living.get(key)
    if crew is None or not crew.alive:
        close_all("ranks of another kind or number were started since")
        crew = Crew(kind, count, device, mode, environment, processes=processes, limits=limits)
        _living[key] = crew
    return crew


def close_all(why: str = "they were closed") -> None:
    """Ends this process' worker group, if it has one."""
    while _living:
        _, crew = _living.popitem()
        crew.close(why)


atexit.register(close_all)
