"""`RemoteCompany`: a run on the ranks of a crew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from frameworks.base import Arguments, BaseCompany
from frameworks.ranks.crew import Crew


class RemoteCompany(BaseCompany):
    """One run of a crew, which forgets the run when nobody holds its company any more, or when that is closed."""

    def __init__(self, crew: Crew, number: int) -> None:
        """Takes the run that `crew.make` has given this number."""
        self.crew = crew
        self.count = crew.count
        self._number = number
        self._drop = finalize(self, crew.drop, number)
        self._drop.atexit = False

    def ask(self, verb: str, given: Sequence[Arguments]) -> tuple[Any, ...]:
        if not self._drop.alive:
            raise ValueError("this run has been closed: make another company")
        return self.crew.ask(self._number, verb, given)

    def save(self, path: Path) -> None:
        super().save(path.absolute())  # the ranks have another working folder

    def restore(self, path: Path) -> None:
        super().restore(path.absolute())

    def close(self) -> None:
        self._drop()
