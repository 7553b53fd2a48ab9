"""accelerate's process-wide state, one for each run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from accelerate.state import AcceleratorState, GradientState, PartialState

_SHARED: tuple[dict[str, Any], ...] = (
    PartialState._shared_state,
    AcceleratorState._shared_state,
    GradientState._shared_state,
)
"""What all accelerators of a process have in common: device, precision, accumulation steps, and whether to update."""


class SharedState:
    """The shared state of one run's accelerator.

    A second `Accelerator` changes the accumulation steps of the first, and refuses another precision, so the runs of a
    process take turns.
    """

    def __init__(self) -> None:
        self._own: list[dict[str, Any]] = [{} for _ in _SHARED]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the context, the process has this run's state; nested contexts of one run are one."""
        others = [dict(shared) for shared in _SHARED]
        _write(self._own)
        try:
            yield
        finally:
            self._own = [dict(shared) for shared in _SHARED]
            _write(others)


def first_state() -> AbstractContextManager[None]:
    """A context in which the process has no accelerator yet."""
    return SharedState().installed()


def _write(states: list[dict[str, Any]]) -> None:
    for shared, state in zip(_SHARED, states, strict=True):
        shared.clear()
        shared.update(state)
