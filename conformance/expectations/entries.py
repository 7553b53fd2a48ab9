"""Known failures as data: which clause, in which framework, in which versions, how it fails, and what finding that is.

`expectations.toml` in an adapter's package holds its findings, the expectations that rest on them, its workarounds, and
the series in which somebody has judged it: versions by device and mode. An entry never skips a test: the test runs, and
an entry whose case passes, fails in another way or was not there at all is an error until the entry is changed or taken
out. In a series that nobody has judged yet the entries of the nearest judged one are taken, and what rests on them is
marked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.expectations.exclusions import EXCLUSION, Exclusion, read_exclusion
from conformance.expectations.judged_series import (
    JUDGED,
    Bearing,
    Judged,
    Place,
    Versions,
    VersionSeries,
    every_version,
    merged,
    parsed,
    read_judged,
)
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import (
    ANY,
    FINDING,
    WORKAROUND,
    Finding,
    Workaround,
    found,
    matched,
    read_finding,
    read_processor,
    read_workaround,
)
from conformance.spec.tables import Kind, Table, read_file
from frameworks.adapter_file import folder_of
from frameworks.contract import Framework
from frameworks.registry import built_in
from results.record.renames import present_case

FILE = "expectations.toml"
"""What an adapter's package calls its own, beside the module that its class is in."""

EXPECTATION = "expectation: "
"""How the case begins of a verdict about an entry that matched no test."""

SEED, OTHER_SEEDS = "seed", "other-seeds"
"""What a failure may depend on: it is there at seed 0, and at others it may be."""

_EXPECTATION = Kind(
    "clause",
    frozenset(
        {
            "finding",
            "clause",
            "versions",
            "device",
            "mode",
            "processor",
            "cases",
            "signature",
            "spoils_process",
            "depends_on",
        }
    ),
)
_PLAIN = "composition.plain-way"
"""The clause whose tests are the programs of findings."""
_SIGNATURE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Expectation:
    """One known failure.

    Attributes:
        clause: id of the clause that does not hold.
        framework: name of the adapter.
        versions: PEP 440 specifiers of the framework's versions, such as ">=2.4,<3.4". A local label ("2.13.0+cpu") is
            overlooked unless the specifier has one; pre-releases count.
        device, mode: a name, several with commas, or "*" for every one.
        processor: as of a finding, where processors that show it do so in other cases.
        cases: exact ids of the cases that fail; empty if every case of the clause does.
        signature: the slug under which the suite reports the failure.
        finding: what goes wrong, and where it is to be read of.
        spoils_process: whether the failure changes what later tests of the same process find; such cases run last.
        depends_on: "seed" where other weights or data than those of seed 0 may not show the failure, "other-seeds"
            where those of some other seeds alone do, so that it says nothing of a run at seed 0, else "".
        file: where the entry stands.
        inferred_from: in a run: the judged series that the entry was taken from, "" in one that was judged itself.
        may_pass: in a run: whether its cases may as well pass.
    """

    clause: str
    framework: str
    versions: str
    device: str
    mode: str
    cases: tuple[str, ...]
    signature: str
    finding: Finding
    processor: str = ANY
    spoils_process: bool = False
    depends_on: str = ""
    file: str = field(default="", compare=False)
    inferred_from: str = field(default="", compare=False)
    may_pass: bool = field(default=False, compare=False)

    @property
    def reason(self) -> str:
        """What goes wrong, in one sentence."""
        return self.finding.text.reason

    @property
    def link(self) -> str:
        """Where it is to be read of, or "none found"."""
        return self.finding.text.link

    def bearing(self, place: Place) -> Bearing | None:
        """What the entry says of a series, whatever the processor; None if it says nothing."""
        return place.bearing(self.versions, self.device, self.mode)

    def means(self, instructions: Collection[str]) -> bool:
        """Whether processors of these instruction sets are meant; where none is listed, an entry that wants one is
        not."""
        return all(matched(words, instructions) for words in (self.processor, self.finding.processor))

    def says_something_at(self, seed: int) -> bool:
        """Whether runs at this seed are meant."""
        return seed != 0 or self.depends_on != OTHER_SEEDS

    def taken(self, bearing: Bearing, seed: int) -> Expectation:
        """This entry as it is held against a run of a series, on which it bears so, at a seed."""
        may_pass = not bearing.settled or (self.depends_on != "" and seed != 0)
        return replace(self, inferred_from=bearing.inferred_from, may_pass=may_pass)

    def covers(self, clause: str, case: str) -> bool:
        """Whether this case of this clause is meant; a test without parameters has the case ""."""
        return clause == self.clause and (not self.cases or case in self.cases)


@dataclass(frozen=True)
class Known:
    """What is known of one or several adapters.

    Attributes:
        judged: in what somebody has judged the one adapter, by its name.
    """

    findings: tuple[Finding, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    workarounds: tuple[Workaround, ...] = ()
    judged: Mapping[str, Judged] = field(default_factory=dict)
    exclusions: tuple[Exclusion, ...] = ()

    def place(self, framework: str, series: VersionSeries) -> Place:
        """Where a series of a framework stands among those that were judged.

        Raises:
            ValueError: its version is not a PEP 440 version.
        """
        version = parsed(framework, series.version)
        return Place(version, series.device, series.mode, self.judged.get(framework, {}))

    def applying(
        self, framework: str, series: VersionSeries, seed: int = 0, instructions: Collection[str] = ()
    ) -> Known:
        """What applies to runs of a series of a framework, at a seed, on a processor of these instruction sets.

        Raises:
            ValueError: as `place`.
        """
        place = self.place(framework, series)
        meant = (
            (entry, entry.bearing(place))
            for entry in self.expectations
            if entry.framework == framework and entry.means(instructions) and entry.says_something_at(seed)
        )
        return replace(
            self,
            expectations=tuple(entry.taken(bearing, seed) for entry, bearing in meant if bearing is not None),
            workarounds=tuple(each for each in self.workarounds if place.bearing("", ANY, each.mode) is not None),
            exclusions=tuple(
                each for each in self.exclusions if place.bearing(each.versions, each.device, each.mode) is not None
            ),
        )

    def expected(self, finding: Finding, version: str) -> bool:
        """Whether a failure at this version, or what drawn programs leave out, rests on the finding."""
        framework = finding.framework
        known = Versions(parsed(framework, version), every_version(self.judged.get(framework, {})))
        ranges = [entry.versions for entry in self.expectations if entry.finding == finding]
        ranges += [entry.versions for entry in self.exclusions if entry.finding == finding]
        return any(known.bearing(versions) for versions in ranges)

    def __add__(self, other: Known) -> Known:
        names = self.judged.keys() | other.judged.keys()
        return Known(
            self.findings + other.findings,
            self.expectations + other.expectations,
            self.workarounds + other.workarounds,
            {name: merged(self.judged.get(name, {}), other.judged.get(name, {})) for name in names},
            self.exclusions + other.exclusions,
        )


def known_of(framework: Framework, seed: int = 0, instructions: Collection[str] = ()) -> Known:
    """What applies to a run of this framework, of the adapter of its name and of the package that its class is in.

    Args:
        instructions: instruction sets of the processor.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    folders = {str(folder): folder for folder in (*_built_in(framework.name), *([files(package)] if package else []))}
    known = sum((read_known(folder, framework.name) for folder in folders.values()), Known())
    known = known.applying(framework.name, series_of(framework), seed, instructions)
    return replace(
        known,
        expectations=tuple(e for e in known.expectations if e.clause != _PLAIN or not e.finding.lacking()),
        workarounds=tuple(each for each in known.workarounds if not each.finding.lacking()),
    )


def series_of(framework: Framework) -> VersionSeries:
    """The series that a run of this framework is of."""
    return VersionSeries(framework.version(), framework.device, framework.mode)


def load_known(names: Iterable[str] = ()) -> Known:
    """What is known of built-in adapters, of all if none is named, without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names or built_in() for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    folder = folder_of(built_in()[name]) if name in built_in() else None
    if folder is not None:
        yield folder


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """What `expectations.toml` in a folder says, nothing without one; `clauses` are the ids that exist.

    Raises:
        ValueError: an entry is none; the message is one line that names the file and the entry.
    """
    source, name = folder.joinpath(FILE), f"{folder.name}/{FILE}"
    if not source.is_file():
        return Known()
    try:
        kinds = {"finding": FINDING, "expectation": _EXPECTATION, "workaround": WORKAROUND, "exclusion": EXCLUSION}
        above, tables = read_file(source, kinds, {JUDGED})
        judged = read_judged(above)
        findings = _by_id(tables["finding"], framework, folder)
        expectations = _expectations(tables["expectation"], name, framework, findings, clauses)
        workarounds = tuple(read_workaround(table, findings, folder) for table in tables["workaround"])
        exclusions = tuple(read_exclusion(table, findings) for table in tables["exclusion"])
        failing = {entry.finding.id for entry in expectations}
        used = failing | {each.finding.id for each in workarounds} | {each.finding.id for each in exclusions}
        if idle := sorted(findings.keys() - used):
            raise ValueError(f"{FILE}: no expectation, workaround or exclusion rests on the finding {idle[0]!r}")
        if unshown := [each.id for each in findings.values() if each.program is None and each.id not in failing]:
            raise ValueError(f"{FILE}: no expectation rests on the finding {unshown[0]!r}, so it needs a program")
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return Known(tuple(findings.values()), expectations, workarounds, {framework: judged} if judged else {}, exclusions)


def _by_id(tables: Iterable[Table], framework: str, folder: Traversable) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for table in tables:
        finding = read_finding(table, framework, folder)
        if finding.id in findings:
            raise ValueError(f"{table.where}: this id stands twice")
        findings[finding.id] = finding
    return findings


def _expectations(
    tables: Iterable[Table],
    name: str,
    framework: str,
    findings: dict[str, Finding],
    clauses: Collection[str] | None,
) -> tuple[Expectation, ...]:
    read: list[Expectation] = []
    for table in tables:
        entry = replace(_expectation(table, framework, findings, clauses), file=name)
        if any(_same_place(entry, other) for other in read):
            raise ValueError(f"{table.where}: another entry has the same versions, device, mode, processor and cases")
        read.append(entry)
    return tuple(read)


def _expectation(
    table: Table, framework: str, findings: dict[str, Finding], clauses: Collection[str] | None
) -> Expectation:
    entry = Expectation(
        clause=table.text("clause"),
        framework=framework,
        versions=table.text("versions"),
        device=table.text("device", "*"),
        mode=table.text("mode", "*"),
        cases=tuple(present_case(table.text("clause"), case) for case in table.texts("cases")),
        signature=table.text("signature"),
        finding=found(table, findings),
        processor=read_processor(table),
        spoils_process=table.flag("spoils_process"),
        depends_on=table.text("depends_on", "") if "depends_on" in table.values else "",
    )
    if entry.depends_on not in ("", SEED, OTHER_SEEDS):
        raise ValueError(f"{table.where}: depends_on {entry.depends_on!r} is neither {SEED!r} nor {OTHER_SEEDS!r}")
    if entry.clause not in (load_clauses() if clauses is None else clauses):
        raise ValueError(f"{table.where}: there is no clause {entry.clause!r}")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions {entry.versions!r} is not a PEP 440 specifier") from None
    if not _SIGNATURE.fullmatch(entry.signature):
        raise ValueError(f"{table.where}: signature {entry.signature!r} is not one word of letters, digits, . _ and -")
    return entry


def _same_place(a: Expectation, b: Expectation) -> bool:
    def place(entry: Expectation) -> tuple[object, ...]:
        where = entry.versions, entry.device, entry.mode, entry.processor
        return entry.clause, entry.framework, *where, frozenset(entry.cases)

    return place(a) == place(b)
