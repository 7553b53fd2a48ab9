"""The clauses of the specification, findings, and their reader of TOML files; unknown keys are errors."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from results.record.model import ClauseText, Consequence, FindingKind, FindingText

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


NO_LINK = "none found"
"""Link of a finding without an upstream thread, change or page."""

PROGRAMS = "findings"
"""Folder of reproducers next to the file."""

WORKAROUND, EXCLUSION = "workaround", "exclusion"
"""Names of the tables inside a finding's table."""

FINDING = Kind(
    "id",
    frozenset({"id", "class", "consequence", "reason", "link", "link_shows", "needs", "device", "processor", "causes"})
    | {"clauses", "spoils_process", "versions", WORKAROUND, EXCLUSION},
)

ANY = "*"
"""Stands for any device, mode or processor."""

PROCESSOR = re.compile(r"\*|-?\w+(?:\|\w+)*(?:, -?\w+(?:\|\w+)*)*")
"""Syntax of a processor: instruction sets that it has, with "-" those that it lacks; "a|b": either, "-a|b": neither."""
_WORKAROUND = frozenset({"kind", "module", "does", "mode"})
WorkaroundKind = Literal["call", "check", "state"]
_MEANT = {FindingKind.NUMERICS: Consequence.LAST_BITS, FindingKind.LIMITATION: Consequence.ERROR}
"""Consequences that a class of findings implies."""
_FINDING_ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LINK = re.compile(r"https?://\S+")


def has_name(names: str, name: str) -> bool:
    """Return whether an entry's device or mode (a name, several with commas, or "*") includes this name."""
    return names == ANY or name in names.split(", ")


def has_instruction_sets(processor: str, instructions: Collection[str]) -> bool:
    """Return whether an entry's processor has these instruction sets."""

    def has(names: str) -> bool:
        return any(name in instructions for name in names.split("|"))

    listed = [] if processor == ANY else processor.split(", ")
    return all(not has(names[1:]) if names.startswith("-") else has(names) for names in listed)


@dataclass(frozen=True)
class Finding:
    """One cause of known failures of a framework.

    Attributes:
        id: its slug; `PROGRAMS/SLUG.py` or `PROGRAMS/FOLDER/SLUG.py`, hyphens as underscores, is its program.
        text: class, consequence, reason and link.
        program: a reproducer that uses only the framework, or None.
        needs: optional top-level modules that it needs in addition to the framework's own.
        processor: instruction sets of affected processors, or with "-" those that they lack, such as
            "avx2, -avx512f"; "*" for every processor.
        device: the affected device, "cpu" or "cuda"; "*" for all.
        spoils_process: whether its failures affect later tests in the same process; such tests run last.
        clauses: clauses whose tests all fail in a mode that nobody has judged, whatever their parameters.
        versions: PEP 440 specifiers of versions that show it on every device that nobody has judged; "" for none.
        causes: messages of `conformance judge-model` about model failures that it causes, with "*" for any words.
    """

    id: str
    framework: str
    text: FindingText
    program: Traversable | None = None
    needs: tuple[str, ...] = ()
    processor: str = ANY
    device: str = ANY
    causes: tuple[str, ...] = ()
    spoils_process: bool = False
    clauses: tuple[str, ...] = ()
    versions: str = ""

    def affects(self, version: Version) -> bool:
        """Return whether `versions`, which is written by hand, includes a version; pre-releases count."""
        return self.versions != "" and SpecifierSet(self.versions).contains(version, prereleases=True)

    def lacking(self) -> tuple[str, ...]:
        """Needed modules that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def not_here(self, devices: Collection[str], instructions: Collection[str]) -> str:
        """Return why its program cannot reproduce it on such devices and instruction sets; "" if it can."""
        if lacking := self.lacking():
            return f"{', '.join(lacking)} is not installed"
        if not has_instruction_sets(self.processor, instructions):
            return f"it needs a processor with {self.processor}"
        return "" if any(has_name(self.device, device) for device in devices) else f"it needs device {self.device}"


@dataclass(frozen=True)
class Workaround:
    """A deviation of an adapter from its framework's documented usage.

    Attributes:
        finding: the defect that the documented usage has; its program uses the documented calls.
        kind: "call": the adapter makes more or other calls; "check": it refuses where the framework is silent;
            "state": it saves state by hand that the framework's own call omits.
        module: file of the adapter.
        does: description of the workaround, in one sentence.
        mode: the modes that run the finding's program (several with commas), "" for the framework's default mode.
    """

    finding: Finding
    kind: WorkaroundKind
    module: str
    does: str
    mode: str


def read_finding(table: Table, framework: str, programs: Mapping[str, Traversable]) -> Finding:
    """Return the finding of a table, with its program if there is one.

    Raises:
        ValueError: it is invalid, its class implies another consequence, or a defect has no program.
    """
    name = table.text("id")
    if not _FINDING_ID.fullmatch(name):
        raise ValueError(f"{table.where}: the id is not a slug in lower case with hyphens")
    program = programs.get(f"{name.replace('-', '_')}.py")
    link = table.text("link")
    if link != NO_LINK and not _LINK.fullmatch(link):
        raise ValueError(f"{table.where}: link: got {link!r}, want an address or {NO_LINK!r}")
    if (link == NO_LINK) == ("link_shows" in table.values):
        raise ValueError(f"{table.where}: link_shows needs a link that is an address")
    text = FindingText(
        kind=table.choice("class", FindingKind),
        consequence=table.choice("consequence", Consequence),
        reason=table.text("reason"),
        link=link,
        link_shows="" if link == NO_LINK else table.text("link_shows"),
    )
    if text.consequence is not (meant := _MEANT.get(text.kind, text.consequence)):
        raise ValueError(f"{table.where}: the consequence of the class {text.kind} is {meant}, not {text.consequence}")
    if text.kind is FindingKind.DEFECT and program is None:
        raise ValueError(
            f"{table.where}: a defect needs a program that shows it, {PROGRAMS}/{name.replace('-', '_')}.py"
        )
    device = table.text("device", ANY)
    if device not in (ANY, "cpu", "cuda"):
        raise ValueError(f"{table.where}: device: got {device!r}, want 'cpu' or 'cuda'")
    return Finding(
        id=name,
        framework=framework,
        text=text,
        program=program,
        needs=table.texts("needs"),
        processor=read_processor(table),
        device=device,
        causes=table.texts("causes"),
        spoils_process=table.flag("spoils_process"),
        clauses=table.texts("clauses"),
        versions=read_versions(table),
    )


def read_programs(folder: Traversable) -> dict[str, Traversable]:
    """Return the programs of an adapter's findings by file name; a name is unique across folders."""
    programs = folder.joinpath(PROGRAMS)
    if not programs.is_dir():
        return {}
    folders = [programs, *(path for path in programs.iterdir() if path.is_dir())]
    return {path.name: path for inner in folders for path in inner.iterdir() if path.name.endswith(".py")}


def read_processor(table: Table) -> str:
    """Return the processors of a table.

    Raises:
        ValueError: they are not given as a list of instruction sets.
    """
    processor = table.text("processor", ANY)
    if not PROCESSOR.fullmatch(processor):
        raise ValueError(f"{table.where}: processor {processor!r} is not a list such as 'avx2, -avx512f', or '*'")
    return processor


def read_versions(table: Table) -> str:
    """Return the versions of a table, "" without any.

    Raises:
        ValueError: the text is not a set of PEP 440 specifiers.
    """
    versions = table.text("versions") if "versions" in table.values else ""
    try:
        SpecifierSet(versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions: got {versions!r}, want a PEP 440 specifier") from None
    return versions


def read_workaround(table: Table, finding: Finding, folder: Traversable) -> Workaround | None:
    """Return the workaround inside a finding's table, None without one.

    Raises:
        ValueError: it is invalid, its finding has no program, or its module is missing.
    """
    inner = table.table(WORKAROUND, _WORKAROUND)
    if inner is None:
        return None
    kind, module = inner.text("kind"), inner.text("module")
    if kind not in get_args(WorkaroundKind):
        raise ValueError(f"{inner.where}: kind: got {kind!r}, want one of {', '.join(get_args(WorkaroundKind))}")
    if finding.program is None:
        raise ValueError(f"{inner.where}: the finding has no program that uses the documented calls")
    if not folder.joinpath(module).is_file():
        raise ValueError(f"{inner.where}: no module {module!r} next to the file")
    mode = inner.text("mode") if "mode" in inner.values else ""
    return Workaround(finding, cast(WorkaroundKind, kind), module, inner.text("does"), mode)
