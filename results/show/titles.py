"""Column titles of records."""

from __future__ import annotations

from results.record.files import one_line
from results.record.reading import Record

NAME_LIMIT = 40
"""Characters of a name that are shown."""


def title(record: Record) -> tuple[str, ...]:
    """The lines over a record's column: framework, version, mode and device, and its status unless complete."""
    series = record.series
    lines = (series.framework, record.variant.framework_version, f"{series.mode} {series.device}".strip())
    short = tuple(one_line(line, NAME_LIMIT) for line in lines if line)
    return short if record.status == "complete" else (*short, record.status)
