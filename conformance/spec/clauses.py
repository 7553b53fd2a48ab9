"""The clauses of the specification, and their reader: one TOML file for each family; unknown keys are errors."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

from results.record.values import ClauseText

Choice = TypeVar("Choice", bound=StrEnum)
SPECIFICATION = Path(__file__).parent
MOST_INCIDENTS = 4
_ID = re.compile(r"([a-z]+)\.[a-z0-9]+(?:-[a-z0-9]+)*")
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


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
            ValueError: it is not a whole number of at least 1.
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
    """Return the tables `[[heading]]` of a file by heading, in order; messages name a table by its number and label.

    Raises:
        ValueError: the file is not TOML or holds anything but these tables, or a table holds a key that is not allowed.
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


_CLAUSE = Kind("id", frozenset({"id", "level", "revision", "requirement", "observed_by", "source", "history"}))


class Level(StrEnum):
    """How binding a clause is: the words of RFC 2119, and two kinds of clauses that never fail.

    An observation records a legitimate difference, to be compared; a measurement records a cost.
    """

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    OBSERVATION = "OBSERVATION"
    MEASUREMENT = "MEASUREMENT"

    @property
    def judged(self) -> bool:
        """Return whether a test of the clause can fail."""
        return self not in (Level.OBSERVATION, Level.MEASUREMENT)


@dataclass(frozen=True)
class Incident:
    """A real bug that broke a clause: the address of its issue or pull request, and a short label."""

    url: str
    what: str

    @property
    def thread(self) -> str:
        """The thread's short name, such as "pytorch/pytorch#98828"."""
        match = _THREAD.fullmatch(self.url)
        return f"{match[1]}#{match[2]}" if match else self.url


@dataclass(frozen=True)
class Clause:
    """One requirement on a training framework.

    Attributes:
        id: "family.slug"; never changes once released.
        family: the first half of the id.
        level: how binding it is.
        requirement: one sentence in the present tense that names no framework.
        observed_by: how a test observes whether the requirement holds.
        source: papers and documentation.
        history: real bugs that broke it.
        revision: starts at 1 and grows when the requirement or the meaning of its tests' results changes. Verdicts
            of different revisions are not comparable.
    """

    id: str
    family: str
    level: Level
    requirement: str
    observed_by: str
    source: str
    history: tuple[Incident, ...] = ()
    revision: int = 1

    @property
    def text(self) -> ClauseText:
        """Return the clause in the form that a record stores."""
        history = tuple(f"{incident.what}: {incident.url}" for incident in self.history)
        return ClauseText(str(self.level), self.requirement, self.source, history, self.family, self.revision)


@cache
def load_clauses() -> dict[str, Clause]:
    """Return all clauses of the suite by id, families in alphabetical order, clauses in the order of their file.

    Raises:
        ValueError: as `read_clauses`.
    """
    return read_clauses(SPECIFICATION)


def read_clauses(folder: Path) -> dict[str, Clause]:
    """Return all clauses of the files FAMILY.toml in a folder, by id.

    Raises:
        ValueError: an entry is invalid; the message is one line that names the file and the entry.
    """
    clauses: dict[str, Clause] = {}
    for path in sorted(folder.glob("*.toml")):
        for table in read_tables(path, {"clause": _CLAUSE})["clause"]:
            clause = _clause(table, path.stem)
            if clause.id in clauses:
                raise ValueError(f"{table.where}: duplicate id")
            clauses[clause.id] = clause
    if not clauses:
        raise ValueError(f"{folder}: no clause")
    return clauses


def _clause(table: Table, family: str) -> Clause:
    identifier = table.text("id")
    match = _ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{table.where}: the id is not family.slug in lower case with hyphens")
    if match[1] != family:
        raise ValueError(f"{table.where}: the id begins with {match[1]!r}, but the family of the file is {family!r}")
    return Clause(
        id=identifier,
        family=family,
        level=table.choice("level", Level),
        requirement=table.text("requirement"),
        observed_by=table.text("observed_by"),
        source=table.text("source"),
        history=_history(table),
        revision=table.number("revision", 1),
    )


def _history(table: Table) -> tuple[Incident, ...]:
    entries = table.tables("history", frozenset({"url", "what"}))
    incidents = tuple(Incident(entry.text("url"), entry.text("what")) for entry in entries)
    for incident in incidents:
        if not _THREAD.fullmatch(incident.url):
            raise ValueError(f"{table.where}: {incident.url!r} is not the address of an issue or a pull request")
    if len({incident.url for incident in incidents}) != len(incidents):
        raise ValueError(f"{table.where}: history names an address twice")
    if len(incidents) > MOST_INCIDENTS:
        raise ValueError(f"{table.where}: history has {len(incidents)} entries, more than {MOST_INCIDENTS}")
    return incidents
