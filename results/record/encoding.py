"""The JSON form of a record and of its parts: `to_json`, `from_json`.

What is written is byte-stable: keys are sorted, one space of indent, a newline at the end. What is read is not trusted:
it becomes a record or is refused in one sentence, and what became a record can be written again.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from results.record.model import PARTS, JudgedTest, Measurement, Observation, Record, TestVerdict
from results.record.schema import SCHEMA_VERSION, strict
from results.record.values import parse, plain, to_line, to_text

_Kind = TypeVar("_Kind")


class VersionError(ValueError):
    """A record of another version of the schema; `remedy` says what to do with it."""

    def __init__(self, version: object) -> None:
        super().__init__(f"schema_version: got {repr(version)[:40]}, want {SCHEMA_VERSION}")
        anew = "run the suite to write it again, or remove it"
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        self.remedy = f"a newer suite wrote it: update this one, {anew}" if newer else anew


class _Versioned(msgspec.Struct):
    schema_version: Any = None


def to_json(record: Record) -> bytes:
    """The record's bytes: the same for equal records.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: the record breaks its own schema.
    """
    content = to_text({"schema_version": SCHEMA_VERSION, **plain(record.sorted())}).encode("utf-8")
    from_json(content)
    return content


def from_json(content: bytes) -> Record:
    """The record in `content`.

    Raises:
        VersionError: it is of another version of the schema.
        ValueError: where and why it is no record, in one sentence.
    """
    with without_collecting():
        try:
            document = parse(content, strict(Record))
        except ValueError:
            check_version(parse(content, _Versioned).schema_version)
            raise
        return check(convert(document, Record))


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pauses the garbage collector, which would scan growing records repeatedly; records have no cycles.

    What reads many records one after another pauses it for all of them: each time it goes on it looks at what is new.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def check_version(version: object) -> None:
    """Refuses another version of the schema than this suite's.

    Raises:
        VersionError: it is another one. ValueError: there is none.
    """
    if version is None:
        raise ValueError("not a record: it has no schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise VersionError(version)


def part(value: object, kind: type[_Kind]) -> dict[str, Any]:
    """The document of a part of a record, such as a header.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: the schema refuses it.
    """
    document: dict[str, Any] = plain(value)
    convert(convert(document, strict(kind)), kind)
    return document


def encode_judged(judged: JudgedTest) -> str:
    """One test's part of a record in one line; errors as of `part`."""
    return to_line(part(judged, JudgedTest))


def decode_judged(line: str) -> JudgedTest:
    """The inverse of `encode_judged`.

    Raises:
        ValueError: the schema refuses it.
    """
    return convert(parse(line.encode("utf-8"), strict(JudgedTest)), JudgedTest)


def convert(document: object, kind: type[_Kind]) -> _Kind:
    """An instance of `kind` from a document or from the struct that `strict` gives for the kind.

    Raises:
        ValueError: the kind refuses it.
    """
    try:
        return msgspec.convert(document, kind, from_attributes=True)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def check(record: Record) -> Record:
    """The record, if its parts are sorted, each occurs once, and no text is missing.

    Raises:
        ValueError: the first of them that is not so.
    """
    if record.status == "complete" and not record.verdicts:
        raise ValueError("status: got complete without a verdict, want at least one")
    for date in (record.started, record.finished):
        try:
            datetime.fromisoformat(date)
        except ValueError:
            raise ValueError(f"{date!r} is not a date") from None
    verdicts = [(verdict.test,) for verdict in record.verdicts]
    for places in (verdicts, *([one.place for one in getattr(record, name)] for name in PARTS)):
        for before, after in pairwise(places):
            if before >= after:
                raise ValueError(f"{' '.join(after)[:120]!r} occurs twice or out of order")
    named: tuple[TestVerdict | Observation | Measurement, ...]
    named = (*record.verdicts, *record.observations, *record.measurements)
    for one in named:
        if one.clause not in record.clauses:
            raise ValueError(f"{type(one).__name__} names clause {one.clause[:80]!r}, whose text is missing")
    for verdict in record.verdicts:
        if not verdict.test.startswith(f"{verdict.clause}/"):
            raise ValueError(f"test {verdict.test[:80]!r} is not of clause {verdict.clause[:80]!r}")
        if verdict.finding and verdict.finding not in record.findings:
            raise ValueError(f"a verdict names finding {verdict.finding[:80]!r}, whose text is missing")
    return record
