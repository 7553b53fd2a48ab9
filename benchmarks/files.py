"""Committed samples: JSON with one row of samples a line, so that a change of one row is a change of one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def save(document: dict[str, Any], rows: str, file: Path) -> None:
    """Writes a document, whose list `rows` goes last, one item a line."""
    head = {key: value for key, value in document.items() if key != rows}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in document[rows])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{json.dumps(head)[:-1]}, "{rows}": [\n{lines}\n]}}\n', "utf-8")


def load(file: Path, made: Callable[[dict[str, Any]], T], otherwise: str) -> T:
    """What `made` makes of a document; `otherwise` says of a file that it is none.

    Raises:
        ValueError: the file holds no such document.
        OSError: it cannot be read.
    """
    try:
        return made(json.loads(file.read_text("utf-8")))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file.name} {otherwise}: {type(error).__name__}: {error}") from error
