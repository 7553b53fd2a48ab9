"""Progress of long work, on standard error and only where somebody watches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def watched(items: Sequence[T], label: str) -> Iterable[T]:
    """The items, with a bar that goes on as they are taken and is gone at the end."""
    console = Console(stderr=True)
    return track(items, label, console=console, transient=True, disable=not console.is_terminal or len(items) < 2)
