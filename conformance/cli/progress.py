"""Progress bars on standard error, only in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def watched(items: Sequence[T], label: str) -> Iterable[T]:
    """The items, with a progress bar that disappears at the end."""
    console = Console(stderr=True)
    return track(items, label, console=console, transient=True, disable=not console.is_terminal or len(items) < 2)
