"""Records as arguments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.recorder import RECORDS
from results.__main__ import find
from results.files import RecordError
from results.records import Record, load


def read(paths: Sequence[Path]) -> list[Record]:
    """The records of files and folders; of this checkout's last runs if none is named.

    Raises:
        RecordError: one cannot be read, or there is none.
    """
    if not paths and not any(RECORDS.glob("*.json*")):
        raise RecordError("results/records", "holds no record", "run the suite first or name records")
    return [load(path) for path in find(paths or [RECORDS])]
