"""Records on disk: byte-stable, and readable without the suite that wrote them.

A record is a JSON document of the published schema, `results/schema.json`. While a run lasts it is a journal
(`results.record.journal`), which `load` reads as well.
"""

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from results.record.encoding import VersionError, from_json, to_json
from results.record.files import RecordError, packed, read, replace
from results.record.lines import replay
from results.record.model import (
    CheckResult,
    Curves,
    Header,
    Measurement,
    Observation,
    Outcome,
    Record,
    RunSetup,
    Series,
    Status,
    Suite,
    Tensors,
    TestVerdict,
    Trace,
    Variant,
)
from results.record.values import ClauseText, parse

__all__ = [
    "CheckResult",
    "ClauseText",
    "Curves",
    "Header",
    "Measurement",
    "Observation",
    "Outcome",
    "Record",
    "RecordError",
    "RunSetup",
    "Series",
    "Status",
    "Suite",
    "Tensors",
    "TestVerdict",
    "Trace",
    "Variant",
    "from_json",
    "load",
    "load_series",
    "to_json",
    "write",
]


SIGNS = b"[{,:"
"""Characters before the values of a document; there is at least one for each value."""

MAX_SIGNS = 1_000_000
"""Most of them in a record that is read, in its texts too, with the lines of a journal; the largest has a third."""


class _SeriesOnly(Struct):
    series: Series


def load(path: Path) -> Record:
    """The record in a .json or .json.gz file, or the record so far of a .jsonl journal.

    Raises:
        RecordError: the file cannot be read, or is no record of the version that this suite reads.
    """
    content, journal = read(path), path.suffix == ".jsonl"
    if len(content) - len(content.translate(None, SIGNS + b"\n" if journal else SIGNS)) > MAX_SIGNS:
        raise RecordError(path, "has too many values", f"no record has {MAX_SIGNS:,} brackets, commas and colons")
    try:
        return replay(content) if journal else from_json(content)
    except VersionError as error:
        raise RecordError(path, f"is a record of another version ({error})", error.remedy) from None
    except (ValueError, RecursionError) as error:
        remedy = "run the suite to write it again, or remove it"
        raise RecordError(path, f"is not a valid record ({error})", remedy) from None


def load_series(path: Path) -> Series:
    """The series of a record, without reading the rest of it where that can be left.

    Raises:
        RecordError: the file cannot be read, or is no record.
    """
    if path.suffix != ".jsonl":
        with suppress(ValueError):
            partly: _SeriesOnly = parse(read(path), _SeriesOnly)
            return partly.series
    return load(path).series


def write(path: Path, record: Record) -> None:
    """Writes the record, compressed if the name ends in .gz; `path` has its old content or the new one at every moment.

    Raises:
        RecordError: the file cannot be written.
        ValueError: the record breaks its own schema.
    """
    replace(path, packed(path, to_json(record)))
