"""The JSON form of a record and of its parts, and its published JSON Schema.

Equal records give equal bytes: keys are sorted, with one space of indent and a newline at the end. A document that is
read is not trusted: it becomes a record that can be written again, or is refused in one sentence.

For dataclasses, msgspec ignores unknown fields. `strict` returns a struct with the same fields that refuses unknown
ones, at every level.
"""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from functools import cache
from inspect import getdoc
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from results.record.model import PARTS, JudgedTest, Measurement, Observation, Record, TestVerdict
from results.record.values import parse, plain, to_line, to_text

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
