"""Plain JSON values (numbers that JSON lacks, byte-stable text, bounded reading), and the texts of a record.

JSON has no infinity and no NaN. Wherever a record has a value (a check's `measured`, `bound`, `expected` and
`derivation`, a recipe's field, an observation, a sample, a point of a curve, a norm) the strings "inf", "-inf" and
"nan" stand for those numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, SupportsFloat, TypeAlias

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    """A JSON value; floats may be infinite or NaN, sequences may be tuples."""

    Number: TypeAlias = float
    """A number, which may be infinite or NaN."""
else:  # what a document has there
    Json = Any
    Number = float | Literal["inf", "-inf", "nan"]

MAX_DEPTH = 64
"""Deepest nesting of a document that is written."""

MAX_VALUE_DEPTH = MAX_DEPTH - 8
"""Deepest nesting of a value that is read, so that the record around it can be written again."""

MAX_BITS = 1023
"""Longest integer of a value: any of them fits a float's range."""

_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_AS_THEY_ARE = frozenset({float, bool, type(None)})
_LONGEST_NUMBER = 40


def encode_number(value: float) -> int | float | str:
    """The number itself if it is finite, else "inf", "-inf" or "nan"."""
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def numbers(points: Sequence[Number]) -> tuple[float, ...]:
    """Return the points of a document with "inf", "-inf" and "nan" turned back into numbers."""
    if str in map(type, points):
        return tuple(_NONFINITE[point] if isinstance(point, str) else point for point in points)
    return tuple(points)


def number(point: Number) -> float:
    """Return one point of a document as a number."""
    return _NONFINITE[point] if isinstance(point, str) else point


def decode(value: Any, depth: int = 0) -> Any:
    """Return a document's value with "inf", "-inf" and "nan" turned back into numbers.

    Raises:
        ValueError: it nests too deeply, or an integer is out of range.
    """
    if depth > MAX_VALUE_DEPTH:
        raise ValueError(f"nested more than {MAX_VALUE_DEPTH} deep")
    kind = type(value)
    if kind is str:
        return _NONFINITE.get(value, value)
    if kind is int:
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is out of range")
    elif kind is list or kind is tuple:
        return kind([item if type(item) in _AS_THEY_ARE else decode(item, depth + 1) for item in value])
    elif kind is dict:
        return {key: item if type(item) in _AS_THEY_ARE else decode(item, depth + 1) for key, item in value.items()}
    return value


def as_number(text: str) -> int | float | str:
    """Return the number of which `text` is the Python literal, else the text."""
    if len(text) <= _LONGEST_NUMBER:
        for kind in (int, float):
            try:
                value = kind(text)
            except ValueError:
                continue
            if repr(value) == text:
                return value
    return text


def plain(value: object, depth: int = 0) -> Any:
    """`value` as dicts, lists and scalars that JSON can hold; dataclasses become objects, arrays and scalars of array
    libraries (whatever has `tolist`) lists and numbers, and lone surrogates in text question marks.

    Raises:
        TypeError: something in it has no JSON form, or a key is no string.
        ValueError: it is nested too deeply, or an integer is out of range.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if value.isascii() else str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is out of range")
        return int(value)
    if isinstance(value, float):
        return encode_number(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth + 1) for field in fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        listed = value.tolist()
        if type(listed) is not type(value):
            return plain(listed, depth + 1)
    if isinstance(value, SupportsFloat):
        return encode_number(float(value))
    raise TypeError(f"a {type(value).__name__} has no JSON form: {str(value)[:80]}")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key of a JSON object is a string, not {key!r}")
    return str(plain(key))


def same(a: Json, b: Json) -> bool:
    """Return whether two values are equal; NaN equals NaN, an int the float of its value, and neither equals a bool."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or (a != a and b != b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a == b
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return False


def walk_values(
    value: Json, deepest: float = math.inf, way: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield the values inside nested objects with their key paths; a value `deepest` keys down is not divided."""
    if isinstance(value, Mapping) and value and len(way) < deepest:
        for key, item in value.items():
            yield from walk_values(item, deepest, (*way, key))
    else:
        yield way, value


def to_text(document: object) -> str:
    """A document that `plain` gave as byte-stable text: sorted keys, one space of indent, a newline at the end."""
    return msgspec.json.format(to_line(document), indent=1) + "\n"


def to_line(document: object) -> str:
    """A document that `plain` gave in one line, with sorted keys and without a newline."""
    return msgspec.json.encode(document, order="sorted").decode("utf-8")


def parse(content: bytes, kind: Any = Any) -> Any:
    """The JSON document in `content`, as an instance of `kind`.

    Raises:
        ValueError: not UTF-8, not JSON, nested too deeply, or no such instance; in one line.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


END = r"(?!\n)$"
"""The end of a pattern, in Python and in JSON Schema: `$` alone is before a trailing newline too in Python."""

_LONGEST = 200

ClauseId = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+{END}", max_length=_LONGEST)]
"""Id of a clause, such as "scaling.stays-finite"."""

FindingId = Annotated[str, Meta(pattern=f"^[a-z0-9]+(-[a-z0-9]+)*{END}", max_length=_LONGEST)]
"""Id of a finding, a slug."""

Revision = Annotated[int, Meta(ge=1, le=2**31)]

NonEmpty = Annotated[str, Meta(min_length=1)]
"""Any text but the empty one."""


@dataclass(frozen=True)
class ClauseText:
    """A clause as it was when it was judged.

    Attributes:
        revision: of its meaning; verdicts of different revisions are not comparable.
    """

    level: str
    requirement: str
    source: str
    history: tuple[str, ...]
    family: NonEmpty
    revision: Revision = 1


class FindingKind(StrEnum):
    """Class of a known failure.

    DEFECT: it contradicts the framework's documentation, or mathematics. DOCUMENTED: the framework says so, or it is by
    design. NUMERICS: the last bits of a compiler or kernel. LIMITATION: the framework refuses clearly.
    """

    DEFECT = "defect"
    DOCUMENTED = "documented"
    NUMERICS = "numerics"
    LIMITATION = "limitation"


class Consequence(StrEnum):
    """Consequence of a known failure for a user, the worst first.

    SILENT_CORRUPTION: parameters, gradients or results are wrong, and no more than a warning says so. SILENT_LOSS:
    state or data is dropped, and no more than a warning says so. LEAKED_SETTING: a process-wide setting stays changed.
    ERROR: a call raises or dies that should work. COST: more memory or time. LAST_BITS: results differ in their
    rounding.
    """

    SILENT_CORRUPTION = "silent-corruption"
    SILENT_LOSS = "silent-loss"
    LEAKED_SETTING = "leaked-setting"
    ERROR = "error"
    COST = "cost"
    LAST_BITS = "last-bits"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Consequence).index(self)


@dataclass(frozen=True)
class FindingText:
    """One cause of known failures, as it was when they were judged.

    Attributes:
        reason: cause and effect, in one sentence.
        link: where it is reported, documented or was introduced, or "none found".
        link_shows: what is to be read there, in a few words; empty without a link.
    """

    kind: FindingKind
    consequence: Consequence
    reason: str
    link: str
    link_shows: str
