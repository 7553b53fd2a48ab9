"""Records and journals on disk: byte-stable, and readable without the suite that wrote them.

A record is a JSON document of the published schema, `results/schema.json`. While a run lasts it is a journal,
which `load` reads as well.

A journal is JSON Lines. Every line has `at`, the seconds since the journal began, and a `kind`: `header`, with the
record's header and the version of the schema; `started`, with the verdict of a test from which nothing follows;
`judged`, with what a test leaves in the record; or `end`. A last line that was cut short is left out.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, defstruct

from results.record.encoding import (
    SCHEMA_VERSION,
    VersionError,
    check,
    check_version,
    convert,
    encode_judged,
    encode_part,
    from_json,
    strict,
    to_json,
)
from results.record.files import RecordBusy, RecordError, compress_content, read, remove_leftovers, replace, unwritable
from results.record.model import (
    PARTS,
    CheckResult,
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
)
from results.record.values import ClauseText, parse, to_line

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
