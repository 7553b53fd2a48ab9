"""The lines of a journal, and the record that they make.

A journal is JSON Lines. Every line has `at`, the seconds since the journal began, and a `kind`: `header`, with the
record's header and the version of the schema; `started`, with the verdict of a test from which nothing follows;
`judged`, with what a test leaves in the record; or `end`. A last line that was cut short is left out.
"""

from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

from msgspec import defstruct

from results.record.encoding import check, check_version, convert, strict
from results.record.model import PARTS, Header, JudgedTest, Record, Seconds, Status, TestVerdict
from results.record.values import parse, to_line

NO_VERDICT = "the test began and no verdict was written: it took the interpreter with it, or the run was killed"
CUT = "the last line of the journal was cut short and left out"

_FIELDS: dict[str, list[Any]] = {
    "header": [("schema_version", Any), ("header", Any)],
    "started": [("verdict", strict(TestVerdict))],
    "judged": [("judged", strict(JudgedTest))],
    "end": [("status", Status), ("finished", str), ("notes", tuple[str, ...], ())],
}
_LINE: Any = reduce(
    or_,
    (
        defstruct(kind, [("at", Seconds), *fields], tag_field="kind", tag=kind, forbid_unknown_fields=True)
        for kind, fields in _FIELDS.items()
    ),
)


def encode_line(kind: str, at: float, **content: Any) -> bytes:
    """One line with its newline."""
    return f"{to_line({'kind': kind, 'at': at, **content})}\n".encode()


def encode_judged_line(at: float, judged: str) -> bytes:
    """The line of a test's part of a record, which is JSON in one line already."""
    return f'{{"at":{to_line(at)},"judged":{judged},"kind":"judged"}}\n'.encode()


def replay(content: bytes) -> Record:
    """The record of a journal, which may be cut at any byte.

    A verdict counts if its line is whole; of two of one test the later counts. A test that began and has no verdict has
    crashed, unless the journal's end says that the run was interrupted on purpose.

    Raises:
        VersionError: the journal is of another version of the schema.
        ValueError: there is no header, a whole line is wrong, or the lines do not add up to a record.
    """
    header: Header | None = None
    end: Any = None
    started: dict[str, TestVerdict] = {}
    judged: dict[str, JudgedTest] = {}
    duration = 0.0
    *lines, rest = content.split(b"\n")
    for number, text in enumerate(lines, 1):
        try:
            line = parse(text, _LINE)
        except ValueError as error:
            raise ValueError(f"line {number} of the journal: {error}") from None
        kind = line.__struct_config__.tag
        if (kind == "header") is not (header is None):
            break
        duration = max(duration, line.at)
        if kind == "header":
            check_version(line.schema_version)
            header = convert(convert(line.header, strict(Header)), Header)
        elif kind == "started":
            started[line.verdict.test] = convert(line.verdict, TestVerdict)
        elif kind == "judged":
            judged[line.judged.verdict.test] = convert(line.judged, JudgedTest)
        else:
            end = line
    else:
        if header is not None:
            return _record(header, started, judged, end, duration, (CUT,) if rest else ())
    raise ValueError("its header is missing, or not alone and first")


def _record(
    header: Header,
    started: dict[str, TestVerdict],
    judged: dict[str, JudgedTest],
    end: Any,
    duration: float,
    notes: tuple[str, ...],
) -> Record:
    try:
        last = datetime.fromisoformat(header.started) + timedelta(seconds=duration)
    except (ValueError, OverflowError):
        raise ValueError(f"a run that began at {header.started!r} cannot last {duration} s") from None
    crashed = {} if end is not None and end.status == "interrupted" else started
    verdicts = {**crashed, **{test: one.verdict for test, one in judged.items()}}
    parts: dict[str, Any] = {
        name: tuple({part.place: part for one in judged.values() for part in getattr(one, name)}.values())
        for name in PARTS
    }
    record = Record(
        **vars(header),
        finished=last.isoformat(timespec="seconds") if end is None else end.finished,
        duration_s=duration,
        status="interrupted" if end is None else end.status,
        verdicts=tuple(verdicts.values()),
        notes=(*(() if end is None else end.notes), *notes),
        **parts,
    )
    return check(record.sorted())
