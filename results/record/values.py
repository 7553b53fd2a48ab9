"""Plain JSON values: numbers that JSON lacks, the byte-stable text of a document, and reading text that is not trusted.

JSON has no infinity and no NaN. Wherever a record holds a value (a check's `measured`, `bound`, `expected` and
`derivation`, an observation, a sample, a point of a trace) the strings "inf", "-inf" and "nan" stand for those numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, SupportsFloat, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value; floats may be infinite or NaN, sequences may be tuples."""

MAX_DEPTH = 64
"""Deepest nesting that a document may have."""

MAX_BITS = 1023
"""Longest integer that a document may hold: any of them fits a float's range."""

_NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode_number(value: float) -> int | float | str:
    """The number itself if it is finite, else "inf", "-inf" or "nan"."""
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def decode_number(value: object) -> float:
    """What `encode_number` was given.

    Raises:
        ValueError: `value` is neither a finite number nor one of the three strings.
    """
    if isinstance(value, str) and value in _NONFINITE:
        return _NONFINITE[value]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise ValueError(f"{str(value)[:40]!r} is no number")


def plain(value: object, depth: int = 0) -> Any:
    """`value` as dicts, lists and scalars that JSON can hold; dataclasses become objects, arrays and scalars of array
    libraries (whatever has `tolist`) lists and numbers, and lone surrogates in text question marks.

    Raises:
        TypeError: something in it has no JSON form, or a key is no string.
        ValueError: it is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int):
        check(int(value), depth)
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
    """Equal, NaN to NaN; an int equals the float of the same value, and neither equals a bool."""
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


def decode(value: Any) -> Any:
    """A parsed document's value with the three strings turned back into numbers."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    return value


def to_text(document: object) -> str:
    """The document as byte-stable text: sorted keys, one space of indent, a newline at the end."""
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_line(document: object) -> str:
    """The document in one line, without a newline."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def parse(content: bytes) -> Any:
    """The JSON document in `content`.

    Raises:
        ValueError: not UTF-8, not JSON, a bare NaN or Infinity, a number out of a float's range, a repeated key, or
            nested too deeply; in one line.
    """
    try:
        document = json.loads(content.decode("utf-8"), object_pairs_hook=_unique)
        check(document)
        return document
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half of a surrogate pair") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None


def check(value: object, depth: int = 0) -> None:
    """Refuses a parsed document that `plain` would not give: what can be read can be written again.

    Raises:
        ValueError: a number is infinite, NaN or out of range, a text holds a lone surrogate, or it nests too deeply.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is infinite or NaN")
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError("a number is out of range")
    elif isinstance(value, str):
        if not value.isascii():
            value.encode("utf-8")
    elif isinstance(value, list):
        for item in value:
            check(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            check(key, depth)
            check(item, depth + 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found
