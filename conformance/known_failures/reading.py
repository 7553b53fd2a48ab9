"""Known failures in adapters' packages: causes in `findings.toml`, snapshots of judged series in `expected`.

A series is a version on a device in a mode. A series that is not judged takes the snapshot of the nearest judged
series. These criteria choose the nearest series, in this order:

1. the same mode before another one, then the same device before another one;
2. the same version before another one;
3. the mode that the framework names first, then the CPU, then the mode that was judged in most versions;
4. of the versions judged there: one that differs in its local label alone, else the highest below, else the lowest
   above.

An entry never skips a test: the test runs. An entry is an error until the snapshot is written again if its test
passes, fails in another way or does not exist. Verdicts of a series that is not judged are marked if they rest on the
entries of another series.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.spec.clauses import Table, load_clauses, read_tables
from conformance.spec.findings import (
    ANY,
    EXCLUSION,
    FINDING,
    PROCESSOR,
    Finding,
    Workaround,
    has_instruction_sets,
    has_name,
    read_finding,
    read_processor,
    read_programs,
    read_versions,
    read_workaround,
)
from frameworks.registry import built_in, folder_of

if TYPE_CHECKING:
    from frameworks.contract import Framework


WAY = "+"
"""Separator between a mode and the ways of a run that are not the default ones."""


@dataclass(frozen=True)
class VersionSeries:
    """A version of a framework on a device, as the user asked for it, in a mode."""

    version: str
    device: str
    mode: str

    def __str__(self) -> str:
        return f"{self.version} {self.device} {self.mode}"


def parse_version(framework: str, version: str) -> Version:
    """Return a comparable version.

    Raises:
        ValueError: it is none of PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


@dataclass(frozen=True)
class Position:
    """A series among the judged ones.

    Attributes:
        version, device, mode: the series that is asked for.
        judged: the series with a snapshot; without any, the series that is asked for counts as judged.
        modes: the framework's modes, the default first.
    """

    version: Version
    device: str
    mode: str
    judged: tuple[VersionSeries, ...]
    modes: tuple[str, ...] = ()

    @cached_property
    def confirmed(self) -> bool:
        """Return whether known failures are strict: the series was judged, or none was."""
        return not self.judged or (self.is_here(self.sources[0]) and self._has_version(self.sources[0]))

    @property
    def nearest(self) -> str:
        """The judged series whose snapshot is taken."""
        return self.label(self.sources[0]) if self.judged else ""

    @cached_property
    def sources(self) -> tuple[VersionSeries, ...]:
        """The judged series whose snapshots apply, the nearest first; the second is on the version's other side."""
        if not self.judged:
            return ()
        groups: dict[tuple[str, str], list[VersionSeries]] = {}
        for series in self.judged:
            groups.setdefault((series.device, series.mode), []).append(series)

        def distance(group: list[VersionSeries]) -> tuple[bool, bool, bool, bool, int, bool, int, str, str]:
            device, mode = group[0].device, group[0].mode
            order = self.modes.index(mode) if mode in self.modes else len(self.modes)
            another = mode != self.mode, mode != self._plain_mode, device != self.device
            return *another, not any(map(self._has_version, group)), order, device != "cpu", -len(group), device, mode

        nearest = min(groups.values(), key=distance)
        group = sorted(nearest, key=lambda series: Version(series.version))
        same = [series for series in group if self._has_version(series)]
        if same:
            return (same[0],)
        below = [series for series in group if Version(series.version) < self.version][-1:]
        above = [series for series in group if Version(series.version) > self.version][:1]
        alike = [series for series in below + above if Version(series.version).public == self.version.public]
        first = (alike or below or above)[0]
        return first, *(series for series in below + above if series != first)

    def label(self, series: VersionSeries) -> str:
        """Name a judged series: its version alone where device and mode are the same."""
        return series.version if self.is_here(series) else str(series)

    def is_here(self, series: VersionSeries) -> bool:
        """Return whether a judged series has this device and mode; ways do not count."""
        return series.device == self.device and series.mode in (self.mode, self._plain_mode)

    @property
    def _plain_mode(self) -> str:
        return self.mode.partition(WAY)[0]

    def _has_version(self, series: VersionSeries) -> bool:
        judged = Version(series.version)
        return judged == (self.version if judged.local else Version(self.version.public))


EXPECTATION = "expectation: "
"""Prefix of the case in a verdict about an unmatched entry."""

SEED, OTHER_SEEDS, KERNELS = "seed", "other-seeds", "kernels"
"""Values of `Expectation.depends_on`: a failure may depend on the seed, or on the rounding of a processor's kernels."""


@dataclass(frozen=True)
class Expectation:
    """One known failure of a judged series, a line of its snapshot.

    Attributes:
        clause: id of the clause that does not hold.
        cases: one element, the test of the clause that fails; () for all tests in a mode that nobody has judged.
        signature: the slug under which the suite reports the failure; several with "|" if it has several causes.
        finding: the cause.
        series: the judged series.
        processor: instruction sets of the processors that show it, as for a finding.
        depends_on: "seed" if the failure occurs at seed 0 and may not at others, "other-seeds" if it occurs only at
            some other seeds, so that the entry does not apply at seed 0, "kernels" if it may not occur where a
            processor's kernels round otherwise, else "".
        file: the snapshot.
        inferred_from: in a run, the judged series from which the entry is inferred; "" in a judged series.
        may_pass: in a run, whether its test may also pass.
    """

    clause: str
    cases: tuple[str, ...]
    signature: str
    finding: Finding
    series: VersionSeries
    processor: str = ANY
    depends_on: str = ""
    file: str = field(default="", compare=False)
    inferred_from: str = field(default="", compare=False)
    may_pass: bool = field(default=False, compare=False)

    @property
    def framework(self) -> str:
        """Name of the adapter."""
        return self.finding.framework

    @property
    def versions(self) -> str:
        """The judged version."""
        return self.series.version

    @property
    def reason(self) -> str:
        """Cause and effect of the failure, in one sentence."""
        return self.finding.text.reason

    @property
    def link(self) -> str:
        """Its address, or "none found"."""
        return self.finding.text.link

    @property
    def test(self) -> str:
        """Id of the test."""
        return "/".join((self.clause, *self.cases))

    @property
    def line(self) -> str:
        """The entry as it stands in the snapshot."""
        conditions = ", ".join(text for text in (self.processor.replace(ANY, ""), self.depends_on) if text)
        return "  ".join((self.test, self.finding.id, self.signature, *([f"[{conditions}]"] if conditions else [])))

    def allows(self, signature: str) -> bool:
        """Return whether the failure may have this signature."""
        return signature in self.signature.split("|")

    def applies(self, instructions: Collection[str], seed: int) -> bool:
        """Return whether the entry applies to runs at this seed on a processor with these instruction sets."""
        return has_instruction_sets(self.processor, instructions) and (seed != 0 or self.depends_on != OTHER_SEEDS)

    def covers(self, clause: str, case: str) -> bool:
        """Return whether the entry is about this case of this clause."""
        return clause == self.clause and (not self.cases or case in self.cases)


def explain_repair(entries: Sequence[Expectation]) -> str:
    """Return a sentence that names the expected failure that did not occur, and the remedy."""
    entry = next(entry for entry in entries if not entry.may_pass)
    origin = f", unlike in {entry.inferred_from}" if entry.inferred_from else ""
    remedy = f"remove its line from {entry.file}, or write the snapshot of this series by `conformance accept RECORD`"
    return f"expected failure of {entry.test} on {entry.framework} did not occur{origin}; {remedy}"


@dataclass(frozen=True)
class Exclusion:
    """A condition under which a finding occurs; programs that meet it are not generated.

    Attributes:
        finding: the defect.
        when: features of `conformance.generative.programs.features`; programs with all of them are excluded.
        versions: PEP 440 specifiers of the affected versions; "" for all.
        device, mode: a name, several with commas, or "*" for all.
        processor: as for an expectation.
    """

    finding: Finding
    when: tuple[str, ...]
    versions: str = ""
    device: str = ANY
    mode: str = ANY
    processor: str = ANY

    def leaves_out(self, features: Collection[str]) -> bool:
        """Return whether a program with these features is excluded; "kind=a|b" in `when` means either feature."""
        terms = (term.partition("=") for term in self.when)
        return all(any(f"{kind}{equals}{one}" in features for one in names.split("|")) for kind, equals, names in terms)

    def applies(self, series: VersionSeries) -> bool:
        """Return whether the finding occurs in a series."""
        return (
            has_name(self.device, series.device) and has_name(self.mode, series.mode) and self.affects(series.version)
        )

    def affects(self, version: str) -> bool:
        """Return whether the finding occurs in a version, pre-releases included."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)


@dataclass(frozen=True)
class Known:
    """Findings, expectations and workarounds of one or several adapters.

    Attributes:
        judged: judged series by adapter.
    """

    findings: tuple[Finding, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    workarounds: tuple[Workaround, ...] = ()
    judged: Mapping[str, tuple[VersionSeries, ...]] = field(default_factory=dict)
    exclusions: tuple[Exclusion, ...] = ()

    def position(self, framework: str, series: VersionSeries, modes: tuple[str, ...] = ()) -> Position:
        """Return the position of a series among the judged ones; `modes` are the framework's, the default first.

        Raises:
            ValueError: its version is not a PEP 440 version.
        """
        version = parse_version(framework, series.version)
        return Position(version, series.device, series.mode, self.judged.get(framework, ()), modes)

    def applying(
        self,
        framework: str,
        series: VersionSeries,
        seed: int = 0,
        instructions: Collection[str] = (),
        modes: tuple[str, ...] = (),
    ) -> Known:
        """Return the entries for runs of a series, at a seed, on a processor with these instruction sets.

        Raises:
            ValueError: as `position`.
        """
        position = self.position(framework, series, modes)
        plain = replace(series, mode=series.mode.partition("+")[0])
        related = (plain, *position.sources)

        def relax(entry: Expectation) -> Expectation:
            may_pass = entry.may_pass or entry.depends_on == KERNELS or (entry.depends_on != "" and seed != 0)
            return replace(entry, may_pass=may_pass)

        return replace(
            self,
            expectations=tuple(
                relax(entry)
                for entry in self._infer_expectations(framework, position)
                if entry.applies(instructions, seed)
            ),
            workarounds=tuple(
                workaround
                for workaround in self.workarounds
                if any(has_name(workaround.mode or ANY, one.mode) for one in related)
            ),
            exclusions=tuple(
                exclusion
                for exclusion in self.exclusions
                if any(map(exclusion.applies, related)) and has_instruction_sets(exclusion.processor, instructions)
            ),
        )

    def _infer_expectations(self, framework: str, position: Position) -> Iterator[Expectation]:
        """Yield the entries of the snapshots that apply to a series.

        An entry may pass if it is inferred from another device or mode, or from one of two versions that disagree. A
        finding that no applying snapshot has is taken from the nearest one that has it, if the finding is of this
        device, or if it affects this version and that snapshot is of this mode.
        """
        entries = [entry for entry in self.expectations if entry.framework == framework]
        if position.confirmed:
            yield from (entry for entry in entries if entry.series in position.sources)
            return
        candidates = [entry for series in position.sources for entry in entries if entry.series == series]
        causes = [
            {(entry.test, entry.finding.id) for entry in candidates if entry.series == series}
            for series in position.sources
        ]
        for finding in self.findings:
            on_device = finding.device == position.device
            if not on_device and not finding.affects(position.version):
                continue
            series = tuple(dict.fromkeys(entry.series for entry in entries if entry.finding is finding))
            nearest = replace(position, judged=series).sources
            in_mode = position.mode in {one.mode for one in nearest}
            if (on_device or in_mode) and not {*series} & {*position.sources}:
                candidates += [entry for entry in entries if entry.finding is finding and entry.series in nearest]
        yielded: set[tuple[str, tuple[str, ...], str]] = set()
        for entry in candidates:
            here = position.is_here(entry.series)
            cases = entry.cases if here or entry.clause not in entry.finding.clauses else ()
            if (entry.clause, cases, entry.finding.id) not in yielded:
                yielded.add((entry.clause, cases, entry.finding.id))
                settled = here and all((entry.test, entry.finding.id) in others for others in causes)
                yield replace(entry, cases=cases, inferred_from=position.label(entry.series), may_pass=not settled)

    def is_expected(self, finding: Finding, version: str) -> bool:
        """Return whether an exclusion or an expectation of the finding affects this version.

        Expectations count in the judged series of this release, in the modes that have ever shown the finding. If none
        of these modes was judged in this release, expectations of the nearest series count.
        """
        if any(one.finding == finding and one.affects(version) for one in self.exclusions):
            return True
        series = {entry.series for entry in self.expectations if entry.finding == finding}
        modes = {(one.device, one.mode) for one in series}
        positions = [self.position(finding.framework, VersionSeries(version, *mode)) for mode in sorted(modes)]
        release = [
            one for one in positions if one.sources and Version(one.sources[0].version).public == one.version.public
        ]
        return any(source in series for position in release or positions for source in position.sources)

    def __add__(self, other: Known) -> Known:
        names = self.judged.keys() | other.judged.keys()
        series = {name: [*self.judged.get(name, ()), *other.judged.get(name, ())] for name in names}
        return Known(
            self.findings + other.findings,
            self.expectations + other.expectations,
            self.workarounds + other.workarounds,
            {name: tuple(dict.fromkeys(both)) for name, both in series.items()},
            self.exclusions + other.exclusions,
        )


FILE, SNAPSHOTS = "findings.toml", "expected"
"""Names of the file of findings and of the folder of snapshots, next to the module of the adapter's class."""

_PLAIN = "composition.plain-way"
"""The clause whose tests are the findings' programs."""
_NAME = re.compile(r".+?-(?P<version>\d[^-]*)-(?P<device>[^-]+)-(?P<mode>.+)\.txt")
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
    package = getattr(sys.modules[type(framework).__module__], "__package__", "")
    folders = {str(folder): folder for folder in (*_built_in(framework.name), *([files(package)] if package else []))}
    series = series_of(framework, ways)
    known = sum(
        (
            read_known(folder, framework.name).applying(framework.name, series, seed, instructions, framework.modes)
            for folder in folders.values()
        ),
        Known(),
    )
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
            entry for entry in known.expectations if entry.clause != _PLAIN or entry.finding.id in judged
        ),
        workarounds=workarounds,
    )


def series_of(framework: Framework, ways: Collection[str] = ()) -> VersionSeries:
    """Return the series of a run of this framework; `ways` as for `known_of`."""
    return VersionSeries(framework.version(), framework.device, WAY.join((framework.mode, *ways)))


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
    known, clauses = Known(), load_clauses() if clauses is None else clauses
    try:
        if folder.joinpath(FILE).is_file():
            known = _read_findings(folder, framework)
        findings = {finding.id: finding for finding in known.findings}
        for finding in known.findings:
            if unknown := sorted({*finding.clauses} - {*clauses}):
                raise ValueError(f"{FILE}: finding {finding.id}: unknown clause {unknown[0]!r}")
        judged: list[VersionSeries] = []
        entries: list[Expectation] = []
        inner = folder.joinpath(SNAPSHOTS)
        for file in sorted(inner.iterdir(), key=lambda file: file.name) if inner.is_dir() else ():
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
    match = _NAME.fullmatch(name)
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
