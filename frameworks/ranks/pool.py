"""Process-wide cache of two worker groups, for tests that alternate between two numbers of ranks."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Mapping
from typing import Any

from frameworks.ranks.limits import LIMITS, Limits
from frameworks.ranks.worker_group import Crew

MOST = 2
"""How many worker groups live at a time."""

_living: dict[tuple[Any, ...], Crew] = {}
"""In the order in which they were asked for last."""


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

    Beyond `MOST` groups, the least recently used one is ended with all its runs.
    """
    key = (kind, count, device, mode, tuple(sorted(environment.items())), processes, limits)
    crew = _living.pop(key, None)
    if crew is None or not crew.alive:
        _end([crew] if crew is not None else [])
        _end([_living.pop(next(iter(_living))) for _ in range(len(_living) - MOST + 1)])
        crew = Crew(kind, count, device, mode, environment, processes=processes, limits=limits)
    _living[key] = crew
    return crew


def _end(crews: Iterable[Crew]) -> None:
    for crew in crews:
        crew.close("ranks of another kind or number were started since")


def close_all(why: str = "they were closed") -> None:
    """Ends this process' worker groups."""
    while _living:
        _, crew = _living.popitem()
        crew.close(why)


atexit.register(close_all)
