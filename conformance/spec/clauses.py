"""The specification: clauses as data, one TOML file for each family."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from conformance.spec.tables import Kind, Table, read_tables
from results.record.texts import ClauseText

SPECIFICATION = Path(__file__).parent

MOST_INCIDENTS = 4
_CLAUSE = Kind("id", frozenset({"id", "level", "revision", "requirement", "observed_by", "source", "history"}))
_ID = re.compile(r"([a-z]+)\.[a-z0-9]+(?:-[a-z0-9]+)*")
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


class Level(StrEnum):
    """How binding a clause is: the words of RFC 2119, and two kinds that never fail.

    An observation is a legitimate difference that is recorded and compared; a measurement is a cost.
    """

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    OBSERVATION = "OBSERVATION"
    MEASUREMENT = "MEASUREMENT"

    @property
    def judged(self) -> bool:
        """Whether a test of the clause can fail."""
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
        observed_by: how a test observes it.
        source: papers and documentation.
        history: real bugs that broke it.
        revision: counts changes of its meaning from 1: of the requirement, or of its tests' results. Verdicts of
            different revisions are not comparable.
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
        """The clause as a record has it."""
        history = tuple(f"{incident.what}: {incident.url}" for incident in self.history)
        return ClauseText(str(self.level), self.requirement, self.source, history, self.family, self.revision)


@cache
def load_clauses() -> dict[str, Clause]:
    """Every clause of the suite by id, families in alphabetical order, clauses in the order of their file.

    Raises:
        ValueError: as `read_clauses`.
    """
    return read_clauses(SPECIFICATION)


def read_clauses(folder: Path) -> dict[str, Clause]:
    """Every clause of the files FAMILY.toml in a folder, by id.

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
