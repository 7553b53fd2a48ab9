"""The JSON form of a record and of its parts: `to_json`, `from_json`.

What is written is byte-stable: keys are sorted, one space of indent, a newline at the end. What is read is not trusted:
it becomes a record or is refused in one sentence, and what became a record can be written again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from results.record.model import JudgedTest, Record
from results.record.schema import SCHEMA_VERSION, strict
from results.record.values import decoded, plain, refuse_repeated_keys, to_line, to_text

_Kind = TypeVar("_Kind")


class VersionError(ValueError):
    """A record of another version of the schema; `remedy` says what to do with it."""

    def __init__(self, version: object) -> None:
        got = repr(version)[:40]
        super().__init__(f"schema_version: got {got}, want {SCHEMA_VERSION}")
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
        VersionError: it is of another version.
        ValueError: where and why it is no record, in one sentence.
    """
    with without_collecting():
        return _read(content)


def _read(content: bytes) -> Record:
    document = _as_written(content)
    if document is not None:
        return _converted(_whole(document), Record)
    refuse_repeated_keys(content)
    _check_version(decoded(content, _Versioned).schema_version)
    return _whole(_converted(decoded(content, strict(Record)), Record))


def _as_written(content: bytes) -> Any:
    """The document of a record in exactly the bytes that `to_json` writes (nearly every file), else None.

    Such bytes repeat no key. Spaces and line breaks between values do not matter.
    """
    try:
        document = decoded(content, strict(Record))
        written = msgspec.json.encode(document, order="sorted")
    except (ValueError, OverflowError, RecursionError):
        return None
    return document if written == msgspec.json.format(content, indent=-1) else None


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


def from_document(document: dict[str, Any]) -> Record:
    """The record of a parsed document; errors as of `from_json`."""
    _check_version(document.get("schema_version"))
    return _whole(_checked(document, Record))


def part(value: object, kind: type[_Kind]) -> dict[str, Any]:
    """The document of a part of a record, such as a header.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: the schema refuses it.
    """
    document: dict[str, Any] = plain(value)
    _checked(document, kind)
    return document


def encode_judged(judged: JudgedTest) -> str:
    """One test's part of a record in one line; errors as of `part`."""
    return to_line(part(judged, JudgedTest))


def decode_judged(line: str) -> JudgedTest:
    """What `encode_judged` was given.

    Raises:
        ValueError: the schema refuses it.
    """
    return _converted(decoded(line.encode("utf-8"), strict(JudgedTest)), JudgedTest)


def _check_version(version: object) -> None:
    if version is None:
        raise ValueError("not a record: it has no schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise VersionError(version)


def _checked(document: object, kind: type[_Kind]) -> _Kind:
    try:
        return _converted(msgspec.convert(document, strict(kind)), kind)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _converted(document: object, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(document, kind, from_attributes=True)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _whole(whole: _Kind) -> _Kind:
    """A record or its document, if its parts are sorted and no text is missing."""
    record: Any = whole
    if record.status == "complete" and not record.verdicts:
        raise ValueError("status: got complete without a verdict, want at least one")
    for places in _places(record):
        for before, after in pairwise(places):
            if before >= after:
                raise ValueError(f"{' '.join(after)[:120]!r} occurs twice or out of order")
    for what, clause in _clauses(record):
        if clause not in record.clauses:
            raise ValueError(f"{what} names clause {clause[:80]!r}, whose text is missing")
    for date in (record.started, record.finished):
        try:
            datetime.fromisoformat(date)
        except ValueError:
            raise ValueError(f"{date!r} is not a date") from None
    for verdict in record.verdicts:
        if not verdict.test.startswith(f"{verdict.clause}/"):
            raise ValueError(f"test {verdict.test[:80]!r} is not of clause {verdict.clause[:80]!r}")
        if verdict.finding and verdict.finding not in record.findings:
            raise ValueError(f"a verdict names finding {verdict.finding[:80]!r}, whose text is missing")
    return whole


def _places(record: Any) -> Iterator[list[tuple[str, ...]]]:
    """Keys of the parts of each kind, in the order of the record."""
    yield [(verdict.test,) for verdict in record.verdicts]
    yield [(one.clause, one.key, one.case) for one in record.observations]
    yield [(one.clause, one.key, one.case) for one in record.measurements]
    yield [(one.key, one.case) for one in record.traces]
    yield [(one.key, one.case) for one in record.tensors]


def _clauses(record: Any) -> Iterator[tuple[str, str]]:
    yield from (("a verdict", verdict.clause) for verdict in record.verdicts)
    yield from (("an observation", one.clause) for one in record.observations)
    yield from (("a measurement", one.clause) for one in record.measurements)
