"""Cells in processes of this machine, some at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from conformance.sweep.launching import CellProcesses, LostCell
from conformance.sweep.requests import CellRequest, CellResult


class LocalEngine:
    """A pool of threads, each of which waits for one cell's process.

    Args:
        jobs: how many cells run at the same time.
    """

    def __init__(self, jobs: int) -> None:
        self._processes = CellProcesses()
        self._pool = ThreadPoolExecutor(jobs)
        self._ended: SimpleQueue[tuple[str, CellResult | str]] = SimpleQueue()

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell."""
        self._pool.submit(self._judge, key, request)

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or why it was lost."""
        return self._ended.get()

    def close(self) -> None:
        """Ends all cells."""
        self._processes.close()
        self._pool.shutdown(cancel_futures=True)

    def _judge(self, key: str, request: CellRequest) -> None:
        try:
            self._ended.put((key, self._processes.judge(request)))
        except LostCell as lost:
            self._ended.put((key, str(lost)))
        except Exception as error:
            self._ended.put((key, f"{type(error).__name__}: {error}"))
