"""Process-wide cache of worker groups, for tests that alternate between one, two, three and four ranks."""

import atexit
from collections.abc import Iterable, Mapping
from typing import Any

from frameworks.ranks.protocol import LIMITS, Limits
from frameworks.ranks.worker_group import WorkerGroup

MOST = 4
"""How many worker groups live at a time."""

_groups: dict[tuple[Any, ...], WorkerGroup] = {}
"""In the order in which they were asked for last."""


def worker_group_of(
    kind: str,
    count: int,
    device: str,
    mode: str,
    environment: Mapping[str, str],
    processes: int | None = None,
    *,
    limits: Limits = LIMITS,
) -> WorkerGroup:
    """The cached worker group with these properties, or a new one; arguments and errors as for `WorkerGroup`.

    Beyond `MOST` groups, the least recently used one is ended with all its runs.
    """
    key = (kind, count, device, mode, tuple(sorted(environment.items())), processes, limits)
    worker_group = _groups.pop(key, None)
    if worker_group is None or not worker_group.alive:
        _end([worker_group] if worker_group is not None else [])
        _end([_groups.pop(next(iter(_groups))) for _ in range(len(_groups) - MOST + 1)])
        worker_group = WorkerGroup(kind, count, device, mode, environment, processes=processes, limits=limits)
    _groups[key] = worker_group
    return worker_group


def _end(worker_groups: Iterable[WorkerGroup]) -> None:
    for worker_group in worker_groups:
        worker_group.close("ranks of another kind or number were started since")


def close_all(why: str = "they were closed") -> None:
    """Ends this process' worker groups."""
    while _groups:
        _, worker_group = _groups.popitem()
        worker_group.close(why)


atexit.register(close_all)
