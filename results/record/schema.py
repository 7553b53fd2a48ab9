"""The published JSON Schema of a record, and strict types for reading; both derive from the classes.

msgspec takes fields that a dataclass has not for nothing. `strict` gives the struct with the same fields that refuses
them, and so does every struct below it.
"""

import json
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from inspect import getdoc
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from results.record.model import Record

SCHEMA_VERSION = 3

_ABOUT = (
    'In every value (measured, bound, expected, derivation, value, recipe) and number the strings "inf", "-inf" and '
    '"nan" stand for the numbers that JSON lacks. Verdicts are sorted by test, other parts by clause, key and case; '
    "each occurs once. Every clause and finding that is named is in clauses and findings. What has a default may be "
    "absent."
)


def strict(kind: Any) -> Any:
    """The type of documents of `kind`, a dataclass or what is made of dataclasses; unknown fields are refused."""
    return _strict(kind)


@cache
def _strict(kind: Hashable) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind, include_extras=True)
        listed = [(each.name, strict(hints[each.name]), *_default(each)) for each in fields(kind)]
        if kind is Record:
            listed.insert(0, ("schema_version", Literal[SCHEMA_VERSION]))
        about = {"__doc__": getdoc(kind)}
        return msgspec.defstruct(kind.__name__, listed, namespace=about, kw_only=True, forbid_unknown_fields=True)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple.__class_getitem__((strict(arguments[0]), ...))
    if origin is Mapping:
        return Mapping.__class_getitem__((arguments[0], strict(arguments[1])))  # type: ignore[attr-defined]
    return kind


def _default(each: Field[Any]) -> tuple[Any, ...]:
    if each.default is not MISSING:
        return (each.default,)
    if each.default_factory is not MISSING:
        return (msgspec.field(default_factory=each.default_factory),)
    return ()


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a record."""
    (top,), definitions = msgspec.json.schema_components((strict(Record),), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:training-conformance:record:{SCHEMA_VERSION}",
        "title": "Record of one run of the training conformance suite",
        "description": _ABOUT,
        **top,
        "$defs": definitions,
    }


def text() -> str:
    """The schema as `results/schema.json` has it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
