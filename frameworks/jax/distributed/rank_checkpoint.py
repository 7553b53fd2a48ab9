"""Results of each rank's part of an open window, stored next to Orbax's tree, which does not depend on the ranks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frameworks.base import MicroBatch

_FILE = "ranks.json"


def save(parts: Sequence[Sequence[MicroBatch]], ranks: int, path: Path) -> None:
    """Writes, for each micro-batch of the open window, what it gave each rank."""
    table = [[(own.total, own.items) for own in each] for each in parts]
    (path / _FILE).write_text(json.dumps({"ranks": ranks, "window": table}), encoding="utf-8")


def restore(path: Path, ranks: int) -> list[tuple[MicroBatch, ...]]:
    """Reads what `save` wrote.

    Raises:
        ValueError: the file is missing or not whole, or has the parts of another number of ranks.
    """
    file = path / _FILE
    try:
        saved: dict[str, Any] = json.loads(file.read_text("utf-8"))
        count = saved["ranks"]
        window = [tuple(MicroBatch(float(total), int(items)) for total, items in each) for each in saved["window"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    if window and count != ranks:
        raise ValueError(f"{path}: saved inside a window by {count} ranks, and these are {ranks}")
    return window
