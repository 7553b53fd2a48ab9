"""The one crew that this process has at a time."""

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
    """The living crew of these properties, started if there is none; arguments and errors are those of `Crew`.

    A process has one crew at most: the former one, if it is another, is ended with all its runs.
    """
    key = (kind, count, device, mode, tuple(sorted(environment.items())), processes, limits)
    crew = _living.get(key)
    if crew is None or not crew.alive:
        close_all("ranks of another kind or number have been started since")
        crew = Crew(kind, count, device, mode, environment, processes=processes, limits=limits)
        _living[key] = crew
    return crew


def close_all(why: str = "they were closed") -> None:
    """Ends this process' crew, if it has one."""
    while _living:
        _, crew = _living.popitem()
        crew.close(why)


atexit.register(close_all)
