"""Engines: where the cells of a sweep run. An engine queues and places them; the cell's own process does the rest."""

from __future__ import annotations

from typing import Protocol

from conformance.sweep.requests import CellRequest, CellResult


class NoEngine(Exception):
    """An engine cannot be used; the message is one line that says what to do."""


class CellEngine(Protocol):
    """Runs cells. It repeats none: a lost cell is reported, and the caller submits it again."""

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell.

        Raises:
            NoEngine: the cell cannot be queued.
        """

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or with the reason why it was lost; waits for one."""

    def close(self) -> None:
        """Ends all cells."""
