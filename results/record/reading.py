"""Records on disk: what one run saw, byte-stable and readable without the suite that wrote it.

A record is a JSON document of the published schema, `results/schema.json`. While a run lasts it is a journal
(`results.record.journal`), which `load` reads as well.
"""

from __future__ import annotations

from pathlib import Path

from results.record.files import RecordBusy, RecordError, read, replace
from results.record.fingerprints import Fingerprint
from results.record.lines import replay
from results.record.model import (
    SCHEMA_VERSION,
    CheckResult,
    ClauseText,
    Consequence,
    FindingKind,
    FindingText,
    Header,
    Measurement,
    Record,
    Series,
    Status,
    Suite,
    TestVerdict,
    Trace,
    Variant,
    VersionError,
    from_document,
    to_document,
    validate,
)
from results.record.outcomes import Outcome
from results.record.values import Json, decode_number, encode_number, parse, to_text

__all__ = [
    "SCHEMA_VERSION",
    "CheckResult",
    "ClauseText",
    "Consequence",
    "FindingKind",
    "FindingText",
    "Fingerprint",
    "Header",
    "Json",
    "Measurement",
    "Outcome",
    "Record",
    "RecordBusy",
    "RecordError",
    "Series",
    "Status",
    "Suite",
    "TestVerdict",
    "Trace",
    "Variant",
    "decode_number",
    "dumps",
    "encode_number",
    "from_document",
    "load",
    "to_document",
    "validate",
    "write",
]


def load(path: Path) -> Record:
    """The record in a .json file, or what a .jsonl journal has seen so far.

    Raises:
        RecordError: the file cannot be read, or is no record of this version.
    """
    content = read(path)
    try:
        if path.suffix == ".jsonl":
            return replay(content)
        return from_document(parse(content))
    except VersionError as error:
        raise RecordError(path, f"is a record of another version ({error})", error.remedy) from None
    except (ValueError, RecursionError) as error:
        remedy = "run the suite again to write it anew, or remove it"
        raise RecordError(path, f"is no valid record ({error})", remedy) from None


def dumps(record: Record) -> bytes:
    """The record's bytes: the same for equal records.

    Raises:
        ValueError: the record breaks its own schema.
    """
    document = to_document(record)
    validate(document)
    return to_text(document).encode("utf-8")


def write(path: Path, record: Record) -> None:
    """Writes the record; at every moment `path` holds its old content or the new one, whole.

    Raises:
        RecordError: the file cannot be written.
        ValueError: the record breaks its own schema.
    """
    replace(path, dumps(record))
