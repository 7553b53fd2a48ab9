"""Reads known failures in adapters' packages, `findings.toml` and snapshots in `expected`, and writes snapshots."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.known_failures.entries import (
    KERNELS,
    OTHER_SEEDS,
    SEED,
    Exclusion,
    Expectation,
    Known,
    VersionSeries,
    join_ways,
    parse_version,
)
from conformance.spec.clauses import (
    ANY,
    EXCLUSION,
    FINDING,
    PROCESSOR,
    Finding,
    Table,
    load_clauses,
    read_finding,
    read_processor,
    read_programs,
    read_tables,
    read_versions,
    read_workaround,
)
from frameworks.registry import built_in, folder_of

if TYPE_CHECKING:
    from frameworks.contract import Framework

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from conformance.known_failures.entries import EXPECTATION
from conformance.test_ids import inventory
from results.record.model import REFUSED, Outcome, TestVerdict
from results.record.reading import Record

FILE, SNAPSHOTS = "findings.toml", "expected"
"""Names of the file of findings and of the folder of snapshots, next to the module of the adapter's class."""

_PROGRAMS_CLAUSE = "composition.plain-way"
"""The clause whose tests are the findings' programs."""

_SNAPSHOT_NAME = re.compile(r".+?-(?P<version>\d[^-]*)-(?P<device>[^-]+)-(?P<mode>.+)\.txt")
_LINE = re.compile(
    r"(?P<clause>[^/\s]+)/(?P<case>\S+(?: \S+)*)  (?P<finding>\S+)  "
    r"(?P<signature>[A-Za-z0-9._-]+(?:\|[A-Za-z0-9._-]+)*)(?:  \[(?P<conditions>[^\]]+)\])?"
)


def known_of(
    framework: Framework, seed: int = 0, instructions: Collection[str] = (), ways: Collection[str] = ()
) -> Known:
    """Return the entries for a run of this framework, from the adapter of its name and from the package of its class.

    A framework whose attribute `has_workarounds` is False has none of the adapter's workarounds. A workaround without
    a mode is judged only in the framework's first mode, since its program does not depend on the mode.

    Args:
        instructions: instruction sets of the processor.
        ways: the ways of the run that are not the adapter's default ones.

    Raises:
        ValueError: an entry cannot be read, or the framework's version is not one of PEP 440.
    """
    folders: list[Traversable] = [*_built_in(framework.name)]
    if package := getattr(sys.modules[type(framework).__module__], "__package__", ""):
        folders.append(files(package))
    name, series, known = framework.name, series_of(framework, ways), Known()
    for folder in {str(folder): folder for folder in folders}.values():
        known += read_known(folder, name).applying(name, series, seed, instructions, framework.modes)
    workarounds = tuple(
        workaround
        for workaround in known.workarounds
        if getattr(framework, "has_workarounds", True)
        and (workaround.mode or framework.mode == framework.modes[0])
        and not workaround.finding.lacking()
    )
    judged = {workaround.finding.id for workaround in workarounds}
    return replace(
        known,
        expectations=tuple(
            entry for entry in known.expectations if entry.clause != _PROGRAMS_CLAUSE or entry.finding.id in judged
        ),
        workarounds=workarounds,
    )


def series_of(framework: Framework, ways: Collection[str] = ()) -> VersionSeries:
    """Return the series of a run of this framework; `ways` as for `known_of`."""
    return VersionSeries(framework.version(), framework.device, join_ways(framework.mode, ways))


def load_known(names: Iterable[str] = ()) -> Known:
    """Return the entries of built-in adapters (by default all), without importing their frameworks.

    Raises:
        ValueError: as `read_known`.
    """
    return sum((read_known(folder, name) for name in names or built_in() for folder in _built_in(name)), Known())


def _built_in(name: str) -> Iterator[Path]:
    folder = folder_of(built_in()[name]) if name in built_in() else None
    if folder is not None:
        yield folder


def read_known(folder: Traversable, framework: str, clauses: Collection[str] | None = None) -> Known:
    """Return the findings and snapshots in a folder, nothing without the files; `clauses` are the existing ids.

    Raises:
        ValueError: an entry is invalid; the message is one line that names the file and the entry.
    """
    clauses = load_clauses() if clauses is None else clauses
    try:
        known = _read_findings(folder, framework) if folder.joinpath(FILE).is_file() else Known()
        findings = {finding.id: finding for finding in known.findings}
        for finding in known.findings:
            if unknown := sorted({*finding.clauses} - {*clauses}):
                raise ValueError(f"{FILE}: finding {finding.id}: unknown clause {unknown[0]!r}")
        judged: list[VersionSeries] = []
        entries: list[Expectation] = []
        snapshots = folder.joinpath(SNAPSHOTS)
        for file in sorted(snapshots.iterdir(), key=lambda file: file.name) if snapshots.is_dir() else ():
            series = _series_named(file.name, framework)
            judged.append(series)
            entries += _read_snapshot(file, f"{folder.name}/{SNAPSHOTS}/{file.name}", series, findings, clauses)
    except ValueError as error:
        raise ValueError(f"{folder.name}/{error}") from None
    return replace(known, expectations=tuple(entries), judged={framework: tuple(judged)} if judged else {})


def _read_findings(folder: Traversable, framework: str) -> Known:
    findings: dict[str, Finding] = {}
    workarounds, exclusions, programs = [], [], read_programs(folder)
    for table in read_tables(folder.joinpath(FILE), {"finding": FINDING})["finding"]:
        finding = read_finding(table, framework, programs)
        if finding.id in findings:
            raise ValueError(f"{table.where}: duplicate id")
        findings[finding.id] = finding
        workarounds.append(read_workaround(table, finding, folder))
        keys = frozenset({"when", "versions", "device", "mode", "processor"})
        exclusions += [_read_exclusion(inner, finding) for inner in table.tables(EXCLUSION, keys)]
    return Known(
        findings=tuple(findings.values()),
        workarounds=tuple(workaround for workaround in workarounds if workaround is not None),
        exclusions=tuple(exclusions),
    )


def _read_exclusion(table: Table, finding: Finding) -> Exclusion:
    device, mode, when = table.text("device", finding.device), table.text("mode", ANY), table.texts("when")
    if not when:
        raise ValueError(f"{table.where}: when is empty, which would exclude every program")
    return Exclusion(finding, when, read_versions(table), device, mode, read_processor(table))


def _series_named(name: str, framework: str) -> VersionSeries:
    """Return the series of the snapshot with this name."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{SNAPSHOTS}: got a file {name!r}, want FRAMEWORK-VERSION-DEVICE-MODE.txt")
    parse_version(f"{SNAPSHOTS}/{name}: {framework}", match["version"])
    return VersionSeries(match["version"], match["device"], match["mode"])


def _read_snapshot(
    file: Traversable, name: str, series: VersionSeries, findings: dict[str, Finding], clauses: Collection[str]
) -> Iterator[Expectation]:
    causes: set[tuple[str, str]] = set()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        where, match = f"{SNAPSHOTS}/{file.name}: line {number}", _LINE.fullmatch(line)
        if match is None:
            want = "'TEST  FINDING  SIGNATURE' or 'TEST  FINDING  SIGNATURE  [INSTRUCTION SETS]'"
            raise ValueError(f"{where}: got {line!r}, want {want}")
        if match["clause"] not in clauses:
            raise ValueError(f"{where}: unknown clause {match['clause']!r}")
        if match["finding"] not in findings:
            raise ValueError(f"{where}: unknown finding {match['finding']!r}; add it to {FILE}")
        conditions = (match["conditions"] or "").split(", ")
        depends_on = [word for word in conditions if word in (SEED, OTHER_SEEDS, KERNELS)]
        processor = ", ".join(word for word in conditions if word not in depends_on) or ANY
        if len(depends_on) > 1 or not PROCESSOR.fullmatch(processor):
            want = f"instruction sets such as 'avx2, -avx512f', and at most one of {SEED}, {OTHER_SEEDS}, {KERNELS}"
            raise ValueError(f"{where}: got [{match['conditions']}], want {want}")
        entry = Expectation(
            clause=match["clause"],
            cases=(match["case"],),
            signature=match["signature"],
            finding=findings[match["finding"]],
            series=series,
            processor=processor,
            depends_on="".join(depends_on),
            file=name,
        )
        if (entry.test, entry.finding.id) in causes:
            raise ValueError(f"{where}: another line has the same test and finding")
        causes.add((entry.test, entry.finding.id))
        yield entry


FAILED = frozenset({Outcome.KNOWN, Outcome.FAIL, Outcome.ERROR, Outcome.TIMEOUT, Outcome.CRASH})
_UNSURE = frozenset({Outcome.ABSTAIN, Outcome.UNSTABLE, *REFUSED})


class UpdateError(Exception):
    """A record cannot become a snapshot; problem and remedy in one line each."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Cause:
    """An existing or a new finding, and the clauses whose new failures it causes; () for all clauses."""

    finding: Finding
    clauses: tuple[str, ...] = ()

    def explains(self, verdict: TestVerdict) -> bool:
        """Return whether the finding causes a failure that has no entry."""
        meant = not self.clauses or verdict.clause in self.clauses
        return meant and verdict.outcome in FAILED and verdict.signature != ""


@dataclass(frozen=True)
class Update:
    """The snapshot of a record's series.

    Attributes:
        series: the record's series, with the version in the snapshot's name.
        name: name of the snapshot's file.
        before, after: the snapshot's entries before and after the update.
        unexplained: failures without an entry.
    """

    series: VersionSeries
    name: str
    before: tuple[Expectation, ...]
    after: tuple[Expectation, ...]
    unexplained: tuple[TestVerdict, ...]

    @property
    def text(self) -> str:
        """The content of the snapshot's file."""
        return "".join(f"{line}\n" for line in sorted(entry.line for entry in self.after))

    def changes(self) -> Iterator[str]:
        """Yield removed lines with a "-", and added lines with a "+"."""
        before, after = ({entry.line for entry in entries} for entries in (self.before, self.after))
        for line in sorted(before ^ after):
            yield f"{'+' if line in after else '-'} {line}"


def update(record: Record, known: Known, cause: Cause | None = None) -> Update:
    """Return the snapshot of a record's series.

    A line stays if its test fails as the line says. It also stays if the record cannot decide: the failure does not
    occur at the run's seed or on its processor, or the test was refused or not judged. A series without a snapshot
    starts from the lines of the nearest one; from another device or mode, only lines of tests that fail are taken. With
    a cause, unexpected failures become lines of its finding.

    Raises:
        UpdateError: the record is of an interrupted run, of selected tests, of another seed, or of older tests.
    """
    _refuse(record)
    framework, series = record.series.framework, _series_of(record, known)
    position = known.position(framework, series)
    source = position.sources[0] if position.sources else series
    former = tuple(entry for entry in known.expectations if entry.series == source)
    own = position.is_here(source)
    by_test: dict[str, list[Expectation]] = {}
    for entry in former:
        by_test.setdefault(entry.test, []).append(replace(entry, series=series))
    after: list[Expectation] = []
    unexplained: list[TestVerdict] = []
    for verdict in record.verdicts:
        if verdict.case.startswith(EXPECTATION):
            continue
        entries = by_test.pop(verdict.test, [])
        applicable = [entry for entry in entries if entry.applies(record.variant.instruction_sets, record.seed)]
        after += [entry for entry in entries if own and entry not in applicable]
        failure = _explain(verdict, applicable, known, cause, series)
        if failure is not None:
            after.append(failure)
        elif verdict.outcome.bad and verdict.outcome is not Outcome.FIXED:
            unexplained.append(verdict)
        elif own:
            unsure = verdict.outcome in _UNSURE
            after += [
                one for one in applicable if unsure or (one.depends_on == KERNELS and verdict.outcome is Outcome.PASS)
            ]
    absent = (entry for entries in by_test.values() for entry in entries)
    after += [entry for entry in absent if own and entry.cases[0].partition("[")[0] in inventory()]
    name = "-".join((framework.replace(":", "."), series.version, series.device, series.mode))
    return Update(series, f"{name}.txt", former if source == series else (), tuple(after), tuple(unexplained))


def _series_of(record: Record, known: Known) -> VersionSeries:
    """Return the record's series; its version has a local label if judged series of its mode, or else any, have one."""
    series = record.series
    version = parse_version(series.framework, record.variant.framework_version)
    judged = known.judged.get(series.framework, ())
    alike = [one for one in judged if (one.device, one.mode) == (series.device, series.mode)] or judged
    label = any(Version(one.version).local for one in alike)
    return VersionSeries(str(version) if label else version.public, series.device, series.mode)


def _explain(
    verdict: TestVerdict, applicable: Sequence[Expectation], known: Known, cause: Cause | None, series: VersionSeries
) -> Expectation | None:
    """Return the entry of a failure, None without a failure or a finding."""
    if verdict.outcome not in FAILED:
        return None
    for entry in applicable:
        if entry.allows(verdict.signature) and verdict.finding in ("", entry.finding.id):
            return entry
    named = [finding for finding in known.findings if finding.id == verdict.finding]
    if not named and cause is not None and cause.explains(verdict):
        named = [cause.finding]
    if not named:
        return None
    return Expectation(verdict.clause, (verdict.case,), verdict.signature, named[0], series, named[0].processor)


def _refuse(record: Record) -> None:
    name = f"the record of {record.series.framework} {record.variant.framework_version}"
    if record.status == "interrupted":
        raise UpdateError(f"{name} is of an interrupted run", "run the suites to their end")
    if record.selection or record.status == "partial":
        raise UpdateError(f"{name} is of selected tests only ({record.selection or 'partial'})", "run all tests")
    if record.seed:
        raise UpdateError(f"{name} is of seed {record.seed}", "run the suites at seed 0")
    present = load_clauses()
    if any(name in present and text.revision != present[name].revision for name, text in record.clauses.items()):
        raise UpdateError(f"{name} is of older revisions of clauses", "run the suites again")


def find_idle(known: Known, update: Collection[Update]) -> list[str]:
    """Return the ids of findings that nothing names once the snapshots are written."""
    written = {one.series for one in update}
    entries = [entry for entry in known.expectations if entry.series not in written]
    used = {entry.finding.id for entry in (*entries, *(entry for one in update for entry in one.after))}
    used |= {one.finding.id for one in known.workarounds} | {one.finding.id for one in known.exclusions}
    return sorted(finding.id for finding in known.findings if finding.id not in used and not finding.causes)
