"""The report: records side by side in one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from results.files import replace
from results.records import Record

if TYPE_CHECKING:
    from results.comparison import Comparison


def write(records: Sequence[Record], path: Path, comparisons: Sequence[Comparison] = ()) -> None:
    """Writes the report; at every moment `path` holds its old content or the new one, whole.

    Args:
        records: the runs, a column each.
        path: the HTML file.
        comparisons: what changed since earlier runs, a section each.

    Raises:
        RecordError: the file cannot be written.
    """
    from results.report.page import render

    replace(path, render(records, comparisons).encode("utf-8"))
