"""Records and journals on disk, their JSON form and its schema: byte-stable, and readable without the suite.

A record is a JSON document of the published schema, `results/schema.json`. While a run lasts it is a journal,
which `load` reads as well.

A journal is JSON Lines. Every line has `at`, the seconds since the journal began, and a `kind`: `header`, with the
record's header and the version of the schema; `started`, with the verdict of a test from which nothing follows;
`judged`, with what a test leaves in the record; or `end`. A last line that was cut short is left out.

Equal records give equal bytes: keys are sorted, with one space of indent and a newline at the end. A document that is
read is not trusted: it becomes a record that can be written again, or is refused in one sentence.

For dataclasses, msgspec ignores unknown fields. `strict` returns a struct with the same fields that refuses unknown
ones, at every level.
"""

import contextlib
import fcntl
import gc
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from inspect import getdoc
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, defstruct

from results.record.files import RecordBusy, RecordError, compress_content, read, remove_leftovers, replace, unwritable
from results.record.model import (
    PARTS,
    CheckResult,
    ClauseText,
    Curves,
    Header,
    JudgedTest,
    Measurement,
    Observation,
    Outcome,
    Record,
    RunSetup,
    Seconds,
    Series,
    Status,
    Suite,
    Tensors,
    TestVerdict,
    Trace,
    Variant,
    parse,
    plain,
    to_line,
    to_text,
)

SCHEMA_VERSION = 3

_ABOUT = (
    'In every value (measured, bound, expected, derivation, value, recipe) and number the strings "inf", "-inf" and '
    '"nan" stand for the numbers that JSON lacks. Verdicts are sorted by test, other parts by clause, key and case; '
    "each occurs once. Every clause and finding that is named is in clauses and findings. What has a default may be "
    "absent."
)


@cache
def strict(kind: Any) -> Any:
    """Return the type of the documents of a kind, a dataclass or a container of such; it refuses unknown fields."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        listed = [(field.name, strict(hints[field.name]), *_default(field)) for field in fields(kind)]
        if kind is Record:
            listed.insert(0, ("schema_version", Literal[SCHEMA_VERSION]))
        namespace = {"__doc__": getdoc(kind)}
        return msgspec.defstruct(kind.__name__, listed, namespace=namespace, kw_only=True, forbid_unknown_fields=True)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple.__class_getitem__((strict(arguments[0]), ...))
    if origin is Mapping:
        return Mapping.__class_getitem__((arguments[0], strict(arguments[1])))  # type: ignore[attr-defined]
    return kind


def _default(field: Field[Any]) -> tuple[Any, ...]:
    if field.default is not MISSING:
        return (field.default,)
    if field.default_factory is not MISSING:
        return (msgspec.field(default_factory=field.default_factory),)
    return ()


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record."""
    (top,), definitions = msgspec.json.schema_components((strict(Record),), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:training-conformance:record:{SCHEMA_VERSION}",
        "title": "Record of one run of the training conformance suite",
        "description": _ABOUT,
        **top,
        "$defs": definitions,
    }


def schema_text() -> str:
    """Return the content of `results/schema.json`."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


_Kind = TypeVar("_Kind")


class VersionError(ValueError):
    """The record has another version of the schema; `remedy` says what to do with it."""

    def __init__(self, version: object) -> None:
        super().__init__(f"schema_version: got {repr(version)[:40]}, want {SCHEMA_VERSION}")
        remedy = "run the suite to write it again, or remove it"
        is_newer = isinstance(version, int) and version > SCHEMA_VERSION
        self.remedy = f"a newer suite wrote it: update this one, {remedy}" if is_newer else remedy


class _Versioned(msgspec.Struct):
    schema_version: Any = None


def to_json(record: Record) -> bytes:
    """Return the record as JSON bytes, which are equal for equal records.

    Raises:
        TypeError: a value in the record has no JSON form.
        ValueError: the record violates the schema.
    """
    content = to_text({"schema_version": SCHEMA_VERSION, **plain(record.sort_parts())}).encode("utf-8")
    from_json(content)
    return content


def from_json(content: bytes) -> Record:
    """Return the record in `content`.

    Raises:
        VersionError: the record has another version of the schema.
        ValueError: the content is not a record; the message says where and why in one sentence.
    """
    with pause_collector():
        try:
            document = parse(content, strict(Record))
        except ValueError:
            check_version(parse(content, _Versioned).schema_version)
            raise
        return check(convert(document, Record))


@contextmanager
def pause_collector() -> Iterator[None]:
    """Within the context, pause the garbage collector, which would scan growing records repeatedly.

    Records have no cycles. A caller that reads many pauses it once, since it scans all new objects when it resumes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_version(version: object) -> None:
    """Refuse other versions of the schema than this suite's.

    Raises:
        VersionError: the version is another one; ValueError if there is none.
    """
    if version is None:
        raise ValueError("not a record: it has no schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise VersionError(version)


def encode_part(value: object, kind: Any) -> dict[str, Any]:
    """Return the document of a part of a record, such as a header.

    Raises:
        TypeError: a value in the part has no JSON form.
        ValueError: the part violates the schema.
    """
    document: dict[str, Any] = plain(value)
    convert(convert(document, strict(kind)), kind)
    return document


def encode_judged(judged: JudgedTest) -> str:
    """Return one test's part of a record as one line of JSON; raises the errors of `encode_part`."""
    return to_line(encode_part(judged, JudgedTest))


def decode_judged(line: str) -> JudgedTest:
    """Return the test's part that `encode_judged` wrote as this line.

    Raises:
        ValueError: the line violates the schema.
    """
    return convert(parse(line.encode("utf-8"), strict(JudgedTest)), JudgedTest)


def convert(document: object, kind: type[_Kind]) -> _Kind:
    """Return an instance of `kind` from a document, or from an instance of `strict(kind)`.

    Raises:
        ValueError: the document does not fit the kind.
    """
    try:
        return msgspec.convert(document, kind, from_attributes=True)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def check(record: Record) -> Record:
    """Return the record after a check that its parts are sorted and unique, and that no text is missing.

    Raises:
        ValueError: a condition does not hold; the message names the first one.
    """
    if record.status == "complete" and not record.verdicts:
        raise ValueError("status: got complete without a verdict, want at least one")
    for date in (record.started, record.finished):
        try:
            datetime.fromisoformat(date)
        except ValueError:
            raise ValueError(f"{date!r} is not a date") from None
    verdicts = [(verdict.test,) for verdict in record.verdicts]
    for keys in (verdicts, *([part.place for part in getattr(record, name)] for name in PARTS)):
        for before, after in pairwise(keys):
            if before >= after:
                raise ValueError(f"{' '.join(after)[:120]!r} occurs twice or out of order")
    parts: tuple[TestVerdict | Observation | Measurement, ...]
    parts = (*record.verdicts, *record.observations, *record.measurements)
    for part in parts:
        if part.clause not in record.clauses:
            raise ValueError(f"{type(part).__name__} names clause {part.clause[:80]!r}, whose text is missing")
    for verdict in record.verdicts:
        if not verdict.test.startswith(f"{verdict.clause}/"):
            raise ValueError(f"test {verdict.test[:80]!r} is not of clause {verdict.clause[:80]!r}")
        if verdict.finding and verdict.finding not in record.findings:
            raise ValueError(f"a verdict names finding {verdict.finding[:80]!r}, whose text is missing")
    return record


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
    return check(record.sort_parts())


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
"""Largest number of `SIGNS` in a record, or in all lines of a journal, texts included; the largest has a third."""


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
    """Return the series of a record, without reading the rest of it if possible.

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
    replace(path, compress_content(path, to_json(record)))


def now() -> str:
    """The date and time in ISO 8601 and UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def journal_of(path: Path) -> Path:
    """The journal of the record NAME.json: NAME.jsonl next to it.

    Raises:
        ValueError: `path` ends neither in .json nor in .jsonl.
    """
    if path.suffix not in (".json", ".jsonl"):
        raise ValueError(f"a record's name ends in .json: {path}")
    return path.with_suffix(".jsonl")


class Journal:
    """Writer of one run, made by `create`; one process writes, under an exclusive lock.

    Every call appends one line with one system call, which the death of the process does not undo. All of them raise
    RecordError if the line cannot be written (the disk is full, ...), ValueError if a clause has no text in the header,
    TypeError if a value has no JSON form.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._began = time.monotonic()
        self._clauses: frozenset[str] = frozenset()

    @classmethod
    def create(cls, path: Path, header: Header) -> Self:
        """Starts the journal of the record `path`, NAME.json.

        The journal of an earlier run that lies there stays: as NAME.interrupted-N.json, or as NAME.json if all that
        it lacked was its last step, or unread as NAME.interrupted-N.damaged if it cannot be read any more.

        Raises:
            ValueError: the header breaks the schema.
            RecordBusy: another run is writing it.
            RecordError: the folder or the file cannot be written, or something other than a file is there.
        """
        for file in (path, journal_of(path)):
            if file.exists() and not file.is_file():
                problem = "is not a regular file, which a record cannot replace"
                raise RecordError(file, problem, "remove it or choose another name")
        document = encode_part(header, Header)
        journal = cls(journal_of(path), _lock(journal_of(path)))
        try:
            if os.fstat(journal._descriptor).st_size:
                try:
                    _write_record(journal.path, load(journal.path))
                except RecordError:
                    replace(_free(journal.path, ".damaged"), journal.path.read_bytes())
                os.ftruncate(journal._descriptor, 0)
            remove_leftovers(journal.path.with_suffix(".json"))
            journal._clauses = frozenset(header.clauses)
            journal._append("header", schema_version=SCHEMA_VERSION, header=document)
        except OSError as error:
            journal.close()
            raise unwritable(journal.path, error) from None
        except BaseException:
            journal.close()
            raise
        return journal

    def start(self, test: str, clause: str, *, seed: int | None = None, repro: str = "") -> None:
        """Write the start of a test, which counts as a crash unless a verdict follows."""
        self._check_clause(clause)
        crash = TestVerdict(test, clause, Outcome.CRASH, "", NO_VERDICT, seed=seed, repro=repro)
        self._append("started", verdict=encode_part(crash, TestVerdict))

    def write_judged(self, judged: JudgedTest) -> None:
        """Write the result of a test; a later call for the same test replaces it."""
        self.judged_line(encode_judged(judged), judged.verdict.clause)

    def judged_line(self, line: str, clause: str) -> None:
        """Write the result of a test as a line of `encode_judged`; `clause` is the clause of the verdict."""
        self._check_clause(clause)
        self._write(lambda at: f'{{"at":{to_line(at)},"judged":{line},"kind":"judged"}}')

    def finish(self, status: Status = "complete", notes: Sequence[str] = ()) -> Path:
        """Turns the journal into the final record and removes it; returns the record's path.

        A complete run becomes NAME.json, and so does a partial one whose tests were selected. Any other becomes
        NAME.STATUS-N.json, next to the last complete record. Tests that an interrupted run was in the middle of are
        left out.

        Args:
            notes: of the record, such as why it is partial.

        Raises:
            RecordError: the record cannot be written; the journal stays.
        """
        try:
            self._append("end", status=status, finished=now(), notes=list(notes))
            target = _write_record(self.path, load(self.path))
            try:
                self.path.unlink()
            except OSError as error:
                raise unwritable(self.path, error) from None
            return target
        finally:
            self.close()

    def close(self) -> None:
        """Closes the journal without finishing it; `load` reads it, and the next run sets it aside."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_clause(self, clause: str) -> None:
        if clause not in self._clauses:
            raise ValueError(f"the journal's header has no text of clause {clause!r}")

    def _append(self, kind: str, **content: Any) -> None:
        self._write(lambda at: to_line({"kind": kind, "at": at, **content}))

    def _write(self, encode: Callable[[float], str]) -> None:
        """Append the line that `encode` returns for the seconds since the journal began."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path} is closed")
        line = f"{encode(round(time.monotonic() - self._began, 3))}\n".encode()
        before = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise unwritable(self.path, error) from None


def _lock(path: Path) -> int:
    """Opens the journal, created if it is missing, with an exclusive lock.

    The lock is on the file, not on its name: if the name has been given to another file meanwhile, try again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
    except BlockingIOError:
        raise RecordBusy(path, "another run is writing it", "wait for it to end or choose another name") from None
    except OSError as error:
        raise unwritable(path, error) from None


def _write_record(path: Path, record: Record) -> Path:
    whole = record.status == "complete" or (record.status == "partial" and record.selection)
    target = path.with_suffix(".json") if whole else _free(path, ".json", record.status)
    write(target, record)
    return target


def _free(path: Path, ending: str, status: Status = "interrupted") -> Path:
    """Return the path NAME.STATUS-N followed by `ending`, for the smallest free N."""
    number = 1
    while (target := path.with_name(f"{path.stem}.{status}-{number}{ending}")).exists():
        number += 1
    return target
