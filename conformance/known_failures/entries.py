"""Known failures as data: clause, framework, versions, signature and finding.

`expectations.toml` in an adapter's package has its findings, their expectations, its workarounds, and the judged
series: versions by device and mode. An entry never skips a test: the test runs, and an entry whose case passes, fails
in another way or does not exist is an error until the entry is changed or removed. In a series that nobody has judged
yet, the entries of the nearest judged series apply, and verdicts based on them are marked.
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

from conformance.known_failures.exclusions import EXCLUSION, Exclusion, read_exclusion
from conformance.known_failures.judged_series import (
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
    finding_of,
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
"""Name of the file, next to the module of the adapter's class."""

EXPECTATION = "expectation: "
"""Prefix of the case in a verdict about an unmatched entry."""

SEED, OTHER_SEEDS = "seed", "other-seeds"
"""Seeds on which a failure may depend."""

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
            "way",
        }
    ),
)
_PLAIN = "composition.plain-way"
"""The clause whose tests are the findings' programs."""
_SIGNATURE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Expectation:
    """One known failure.

    Attributes:
        clause: id of the clause that does not hold.
        framework: name of the adapter.
        versions: PEP 440 specifiers of the framework's versions, such as ">=2.4,<3.4". A local label ("2.13.0+cpu") is
            overlooked unless the specifier has one; pre-releases count.
        device, mode: a name, several with commas, or "*" for all.
        processor: as for a finding, if the failing cases depend on the processor.
        cases: exact ids of the cases that fail; empty if every case of the clause does.
        signature: the slug under which the suite reports the failure.
        finding: the cause.
        spoils_process: whether the failure affects later tests in the same process; such cases run last.
        depends_on: "seed" if the failure occurs at seed 0 and may not at others, "other-seeds" if it occurs only at
            some other seeds, so that the entry does not apply at seed 0, else "".
        way: the way in which alone it fails, "TECHNIQUE.NAME"; "" for any.
        file: the file of the entry.
        inferred_from: in a run, the judged series from which the entry is inferred; "" in a judged series.
        may_pass: in a run, whether its cases may also pass.
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
    way: str = ""
    file: str = field(default="", compare=False)
    inferred_from: str = field(default="", compare=False)
    may_pass: bool = field(default=False, compare=False)

    @property
    def reason(self) -> str:
        """What goes wrong, in one sentence."""
        return self.finding.text.reason

    @property
    def link(self) -> str:
        """Its address, or "none found"."""
        return self.finding.text.link

    def bearing(self, place: Place) -> Bearing | None:
        """How the entry applies to a series, on any processor; None if it does not."""
        return place.bearing(self.versions, self.device, self.mode)

    def means(self, instructions: Collection[str]) -> bool:
        """Whether the entry applies to processors with these instruction sets; an entry that needs one does not if none
        is listed."""
        return all(matched(words, instructions) for words in (self.processor, self.finding.processor))

    def says_something_at(self, seed: int) -> bool:
        """Whether the entry applies to runs at this seed."""
        return seed != 0 or self.depends_on != OTHER_SEEDS

    def taken(self, bearing: Bearing, seed: int) -> Expectation:
        """The entry for a run of a series at a seed."""
        may_pass = not bearing.settled or (self.depends_on != "" and seed != 0)
        return replace(self, inferred_from=bearing.inferred_from, may_pass=may_pass)

    def covers(self, clause: str, case: str) -> bool:
        """Whether the entry covers this case of this clause; a test without parameters has the case ""."""
        return clause == self.clause and (not self.cases or case in self.cases)


@dataclass(frozen=True)
class Known:
    """Findings, expectations and workarounds of one or several adapters.

    Attributes:
        judged: judged series by adapter.
    """

    findings: tuple[Finding, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    workarounds: tuple[Workaround, ...] = ()
    judged: Mapping[str, Judged] = field(default_factory=dict)
    exclusions: tuple[Exclusion, ...] = ()

    def place(self, framework: str, series: VersionSeries) -> Place:
        """The position of a series among the judged series.

        Raises:
            ValueError: its version is not a PEP 440 version.
        """
        version = parsed(framework, series.version)
        return Place(version, series.device, series.mode, self.judged.get(framework, {}))

    def applying(
        self, framework: str, series: VersionSeries, seed: int = 0, instructions: Collection[str] = ()
    ) -> Known:
        """The entries for runs of a series, at a seed, on a processor with these instruction sets.

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
            workarounds=tuple(
                each for each in self.workarounds if place.bearing("", ANY, each.mode or ANY) is not None
            ),
            exclusions=tuple(
                each for each in self.exclusions if place.bearing(each.versions, each.device, each.mode) is not None
            ),
        )

    def expected(self, finding: Finding, version: str) -> bool:
        """Whether an expectation or exclusion at this version names the finding."""
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


def known_of(
    framework: Framework, seed: int = 0, instructions: Collection[str] = (), ways: Collection[str] = ()
) -> Known:
    """The entries for a run of this framework, from the adapter of its name and from the package of its class.

    A framework whose attribute `has_workarounds` is False has none of the adapter's workarounds. One that names no
    mode is judged in the framework's first mode alone, since its program depends on none.

    Args:
        instructions: instruction sets of the processor.
        ways: the ways of the run that are not the adapter's default ones.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    folders = {str(folder): folder for folder in (*_built_in(framework.name), *([files(package)] if package else []))}
    known = sum((read_known(folder, framework.name) for folder in folders.values()), Known())
    known = known.applying(framework.name, series_of(framework), seed, instructions)
    workarounds = tuple(
        each
        for each in known.workarounds
        if getattr(framework, "has_workarounds", True)
        and (each.mode or framework.mode == framework.modes[0])
        and not each.finding.lacking()
    )
    judged = {each.finding.id for each in workarounds}
    return replace(
        known,
        expectations=tuple(
            entry
            for entry in known.expectations
            if (entry.clause != _PLAIN or entry.finding.id in judged) and entry.way in ("", *ways)
        ),
        workarounds=workarounds,
    )


def series_of(framework: Framework) -> VersionSeries:
    """The series of a run of this framework."""
    return VersionSeries(framework.version(), framework.device, framework.mode)


def load_known(names: Iterable[str] = ()) -> Known:
    """The entries of built-in adapters (by default all), without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names or built_in() for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    folder = folder_of(built_in()[name]) if name in built_in() else None
    if folder is not None:
        yield folder


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """Content of `expectations.toml` in a folder, empty without the file; `clauses` are the existing ids.

    Raises:
        ValueError: an entry is invalid; the message is one line that names the file and the entry.
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
        used |= {each.id for each in findings.values() if each.causes}
        if idle := sorted(findings.keys() - used):
            raise ValueError(
                f"{FILE}: no expectation, workaround or exclusion names the finding {idle[0]!r}; remove it"
            )
        if unshown := [each.id for each in findings.values() if each.program is None and each.id not in failing]:
            raise ValueError(f"{FILE}: finding {unshown[0]!r} needs a program or an expectation")
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return Known(tuple(findings.values()), expectations, workarounds, {framework: judged} if judged else {}, exclusions)


def _by_id(tables: Iterable[Table], framework: str, folder: Traversable) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    for table in tables:
        finding = read_finding(table, framework, folder)
        if finding.id in findings:
            raise ValueError(f"{table.where}: duplicate id")
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
        finding=finding_of(table, findings),
        processor=read_processor(table),
        spoils_process=table.flag("spoils_process"),
        depends_on=table.text("depends_on", "") if "depends_on" in table.values else "",
        way=table.text("way", "") if "way" in table.values else "",
    )
    if entry.depends_on not in ("", SEED, OTHER_SEEDS):
        raise ValueError(f"{table.where}: depends_on: got {entry.depends_on!r}, want {SEED!r} or {OTHER_SEEDS!r}")
    if entry.clause not in (load_clauses() if clauses is None else clauses):
        raise ValueError(f"{table.where}: unknown clause {entry.clause!r}")
    try:
        SpecifierSet(entry.versions)
    except InvalidSpecifier:
        raise ValueError(f"{table.where}: versions: got {entry.versions!r}, want a PEP 440 specifier") from None
    if not _SIGNATURE.fullmatch(entry.signature):
        raise ValueError(f"{table.where}: signature: got {entry.signature!r}, want letters, digits, . _ and -")
    return entry


def _same_place(a: Expectation, b: Expectation) -> bool:
    def place(entry: Expectation) -> tuple[object, ...]:
        where = entry.versions, entry.device, entry.mode, entry.processor
        return entry.clause, entry.framework, *where, frozenset(entry.cases)

    return place(a) == place(b)
