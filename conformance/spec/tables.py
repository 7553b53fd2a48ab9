"""Reads a TOML file of arrays of tables, and rejects unexpected content."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True)
class Table:
    """One table of a file; `where` identifies it in error messages."""

    where: str
    values: Mapping[str, Any]

    def text(self, key: str, default: str | None = None) -> str:
        """The string under `key` as one line: runs of white space become one space.

        Raises:
            ValueError: it is missing and has no default, is not a string, or is empty.
        """
        value = self.values.get(key, default)
        if value is None:
            raise ValueError(f"{self.where}: {key} is missing")
        if not isinstance(value, str):
            raise ValueError(f"{self.where}: {key}: got {value!r}, want a string")
        line = " ".join(value.split())
        if not line:
            raise ValueError(f"{self.where}: {key} is empty")
        return line

    def choice(self, key: str, among: type[Choice]) -> Choice:
        """The member of an enumeration whose value stands under `key`.

        Raises:
            ValueError: it is missing, or no member's value.
        """
        value = self.text(key)
        try:
            return among(value)
        except ValueError:
            raise ValueError(f"{self.where}: {key}: got {value!r}, want one of {', '.join(among)}") from None

    def flag(self, key: str) -> bool:
        """The truth value under `key`; false if it is missing.

        Raises:
            ValueError: it is neither true nor false.
        """
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key}: got {value!r}, want true or false")
        return value

    def number(self, key: str, default: int) -> int:
        """The whole number of at least 1 under `key`.

        Raises:
            ValueError: it is none.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.where}: {key}: got {value!r}, want a whole number of at least 1")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The strings of the array under `key`, as they stand; none if it is missing.

        Raises:
            ValueError: it is not an array of non-empty strings, or names one twice.
        """
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ValueError(f"{self.where}: {key}: got {value!r}, want an array of non-empty strings")
        if len(set(value)) != len(value):
            raise ValueError(f"{self.where}: {key} has a duplicate: {value!r}")
        return tuple(value)

    def table(self, key: str, allowed: frozenset[str]) -> Table | None:
        """The table under `key`, with no other keys than those allowed; None if it is missing.

        Raises:
            ValueError: it is no table, or holds an unknown key.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError(f"{self.where}: {key}: got {value!r}, want a table")
        return _table(f"{self.where}, {key}", value, allowed)

    def tables(self, key: str, allowed: frozenset[str]) -> tuple[Table, ...]:
        """The inline tables of the array under `key`, with no other keys than those allowed; none if it is missing.

        Raises:
            ValueError: it is not an array of tables, or one holds an unknown key.
        """
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ValueError(f"{self.where}: {key}: got {value!r}, want an array of tables")
        return tuple(_table(f"{self.where}, {key} {number}", item, allowed) for number, item in enumerate(value, 1))


@dataclass(frozen=True)
class Kind:
    """A kind of table: the key that labels an entry in messages, and the allowed keys."""

    label: str
    allowed: frozenset[str]


def read_tables(path: Traversable, kinds: Mapping[str, Kind]) -> dict[str, tuple[Table, ...]]:
    """The tables `[[heading]]` of a file by heading, in order; an entry is called by its number and its label's value.

    Raises:
        ValueError: the file is not TOML, holds anything else, or a table holds a key that is not allowed.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name}: not TOML: {error}") from error
    if others := sorted(content.keys() - kinds.keys()):
        headings = " and ".join(f"[[{heading}]]" for heading in kinds)
        raise ValueError(f"{path.name}: unknown key {others[0]!r}; want only {headings} tables")
    return {heading: tuple(_entries(path.name, heading, kind, content)) for heading, kind in kinds.items()}


def _entries(name: str, heading: str, kind: Kind, content: Mapping[str, Any]) -> Iterator[Table]:
    entries = content.get(heading, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{name}: {heading} is not an array of tables; write [[{heading}]]")
    for number, entry in enumerate(entries, 1):
        called = entry.get(kind.label, f"no {kind.label}")
        yield _table(f"{name}: {heading} {number} ({called})", entry, kind.allowed)


def _table(where: str, values: Mapping[str, Any], allowed: frozenset[str]) -> Table:
    if unknown := sorted(values.keys() - allowed):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; want one of {', '.join(sorted(allowed))}")
    return Table(where, values)
