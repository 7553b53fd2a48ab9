"""`RemoteRankGroup`: a run on a worker group."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from fixtures.model import Window
from frameworks.base import Arguments, BaseRankGroup, with_items
from frameworks.contract import Stop, Update
from frameworks.ranks.worker_group import WorkerGroup


class RemoteRankGroup(BaseRankGroup):
    """One run on a worker group, which drops the run when this object is closed or garbage collected."""

    def __init__(self, worker_group: WorkerGroup, number: int) -> None:
        """Wraps the run with the number that `worker_group.make` returned."""
        self.worker_group = worker_group
        self.count = worker_group.count
        self.limit_s = worker_group.limits.group_s + worker_group.limits.grace_s
        self._number = number
        self._drop = finalize(self, worker_group.drop, number)
        self._drop.atexit = False

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        self._check()
        return self.worker_group.ask(self._number, verb, given)

    def fail_rank(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self._check()
        return self.worker_group.ask(self._number, "update_share", with_items(windows), stop=(rank, how))

    def _check(self) -> None:
        if not self._drop.alive:
            raise ValueError("this run is closed; start a new one")

    def save(self, path: Path) -> None:
        super().save(path.absolute())  # the ranks have another working folder

    def restore(self, path: Path) -> None:
        super().restore(path.absolute())

    def close(self) -> None:
        self._drop()
