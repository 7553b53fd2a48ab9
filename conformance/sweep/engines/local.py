"""Cells in processes of this machine, some at a time."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

from conformance.sweep.launching import CellProcesses, LostCell
from conformance.sweep.requests import CellRequest, CellResult

_POLL_S = 0.5
"""Seconds after which the main thread heeds a signal that another thread took."""


class LocalEngine:
    """A pool of threads, each of which waits for one cell's process. The main thread, which heeds signals, starts them.

    Args:
        jobs: how many cells run at the same time.
    """

    def __init__(self, jobs: int) -> None:
        self._processes = CellProcesses()
        self._pool = ThreadPoolExecutor(jobs)
        self._free = jobs
        self._queued: deque[tuple[str, CellRequest]] = deque()
        self._ended: SimpleQueue[tuple[str, CellResult | str]] = SimpleQueue()

    def submit(self, key: str, request: CellRequest) -> None:
        """Queues a cell."""
        self._queued.append((key, request))
        self._start()

    def next(self) -> tuple[str, CellResult | str]:
        """The key of a cell that has ended, with its result, or why it was lost."""
        ended = None
        while ended is None:
            with suppress(Empty):
                ended = self._ended.get(timeout=_POLL_S)
        self._free += 1
        self._start()
        return ended

    def close(self) -> None:
        """Ends all cells."""
        self._processes.close()
        self._pool.shutdown()

    def _start(self) -> None:
        while self._free and self._queued:
            self._free -= 1
            self._pool.submit(self._judge, *self._queued.popleft())

    def _judge(self, key: str, request: CellRequest) -> None:
        try:
            self._ended.put((key, self._processes.judge(request)))
        except LostCell as lost:
            self._ended.put((key, str(lost)))
        except Exception as error:
            self._ended.put((key, f"{type(error).__name__}: {error}"))
