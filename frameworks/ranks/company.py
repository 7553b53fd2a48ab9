"""`RemoteCompany`: a run on the ranks of a crew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from fixtures.model import Window
from frameworks.base import Arguments, BaseCompany, with_items
from frameworks.contract import Stop, Update
from frameworks.ranks.crew import Crew


class RemoteCompany(BaseCompany):
    """One run of a crew, which forgets the run when nobody holds its company any more, or when that is closed."""

    def __init__(self, crew: Crew, number: int) -> None:
        """Takes the run that `crew.make` has given this number."""
        self.crew = crew
        self.count = crew.count
        self.limit_s = crew.limits.group_s + crew.limits.grace_s
        self._number = number
        self._drop = finalize(self, crew.drop, number)
        self._drop.atexit = False

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        self._check()
        return self.crew.ask(self._number, verb, given)

    def lose(self, windows: Sequence[Window], rank: int, how: Stop) -> tuple[Update | None, ...]:
        self._check()
        return self.crew.ask(self._number, "update_share", with_items(windows), stop=(rank, how))

    def _check(self) -> None:
        if not self._drop.alive:
            raise ValueError("this run has been closed: make another company")

    def save(self, path: Path) -> None:
        super().save(path.absolute())  # the ranks have another working folder

    def restore(self, path: Path) -> None:
        super().restore(path.absolute())

    def close(self) -> None:
        self._drop()
