"""The report: records side by side in one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from results.compare.pairing import NONE, Comparisons
from results.record.files import replace_by
from results.record.reading import Record
from results.report.page import pieces


def write(records: Sequence[Record], path: Path, comparisons: Comparisons = NONE) -> None:
    """Writes the report; at every moment `path` holds its old content or the new one, whole.

    Args:
        records: the runs, a column each.
        path: the HTML file.
        comparisons: what changed since earlier runs.

    Raises:
        RecordError: the file cannot be written.
    """
    replace_by(path, (piece.encode("utf-8") for piece in pieces(records, comparisons)))
