"""Known failures of an adapter: the entries of its snapshots, and those that apply to a run.

An entry never skips a test: the test runs. An entry is an error until the snapshot is written again if its test
passes, fails in another way or does not exist. Verdicts of a series that is not judged are marked if they rest on the
entries of another series.

A series is a version on a device in a mode; one with a snapshot is judged. Any other series takes the snapshot of the
nearest judged one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.spec.clauses import ANY, Finding, Workaround, has_instruction_sets, has_name

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
    def test(self) -> str:
        """Id of the test."""
        return "/".join((self.clause, *self.cases))

    @property
    def line(self) -> str:
        """The entry as it stands in the snapshot."""
        conditions = ", ".join(text for text in (self.processor.replace(ANY, ""), self.depends_on) if text)
        parts = [self.test, self.finding.id, self.signature]
        return "  ".join([*parts, f"[{conditions}]"] if conditions else parts)

    def allows(self, signature: str) -> bool:
        """Return whether the failure may have this signature."""
        return signature in self.signature.split("|")

    def applies(self, instructions: Collection[str], seed: int) -> bool:
        """Return whether the entry applies to runs at this seed on a processor with these instruction sets."""
        return has_instruction_sets(self.processor, instructions) and (seed != 0 or self.depends_on != OTHER_SEEDS)

    def covers(self, clause: str, case: str) -> bool:
        """Return whether the entry is about this case of this clause."""
        return clause == self.clause and (not self.cases or case in self.cases)


def explain_repair(entry: Expectation) -> str:
    """Return a sentence that names the expected failure that did not occur, and the remedy."""
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
        for term in self.when:
            kind, equals, names = term.partition("=")
            if not any(f"{kind}{equals}{name}" in features for name in names.split("|")):
                return False
        return True

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
        related = (replace(series, mode=drop_ways(series.mode)), *position.sources)
        expectations = []
        for entry in self._infer_expectations(framework, position):
            if entry.applies(instructions, seed):
                may_pass = entry.may_pass or entry.depends_on == KERNELS or (entry.depends_on != "" and seed != 0)
                expectations.append(replace(entry, may_pass=may_pass))
        return replace(
            self,
            expectations=tuple(expectations),
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

        An entry may pass if it is inferred from another device or mode, or from one of two versions that disagree.
        """
        entries = [entry for entry in self.expectations if entry.framework == framework]
        if position.confirmed:
            yield from (entry for entry in entries if entry.series in position.sources)
            return
        by_source = [[entry for entry in entries if entry.series == series] for series in position.sources]
        failures = [{(entry.test, entry.finding.id) for entry in source} for source in by_source]
        yielded: set[tuple[str, tuple[str, ...], str]] = set()
        for entry in (*(entry for source in by_source for entry in source), *self._elsewhere(entries, position)):
            is_here = position.is_here(entry.series)
            cases = entry.cases if is_here or entry.clause not in entry.finding.clauses else ()
            if (entry.clause, cases, entry.finding.id) not in yielded:
                yielded.add((entry.clause, cases, entry.finding.id))
                certain = is_here and all((entry.test, entry.finding.id) in source for source in failures)
                yield replace(entry, cases=cases, inferred_from=position.label(entry.series), may_pass=not certain)

    def _elsewhere(self, entries: Sequence[Expectation], position: Position) -> Iterator[Expectation]:
        """Yield the nearest entries of each finding that no applying snapshot has.

        The finding must be of the position's device, or affect its version and have the nearest entries in its mode.
        """
        for finding in self.findings:
            on_device = finding.device == position.device
            if not on_device and not finding.affects(position.version):
                continue
            series = tuple(dict.fromkeys(entry.series for entry in entries if entry.finding is finding))
            nearest = replace(position, judged=series).sources
            in_mode = position.mode in {one.mode for one in nearest}
            if (on_device or in_mode) and not {*series} & {*position.sources}:
                yield from (entry for entry in entries if entry.finding is finding and entry.series in nearest)

    def is_expected(self, finding: Finding, version: str) -> bool:
        """Return whether an exclusion or an expectation of the finding affects this version.

        Expectations count in the judged series of this release, in the modes that have ever shown the finding. If none
        of these modes was judged in this release, expectations of the nearest series count.
        """
        if any(one.finding == finding and one.affects(version) for one in self.exclusions):
            return True
        series = {entry.series for entry in self.expectations if entry.finding == finding}
        where = sorted({(one.device, one.mode) for one in series})
        positions = [self.position(finding.framework, VersionSeries(version, *pair)) for pair in where]
        judged_here = [
            one for one in positions if one.sources and Version(one.sources[0].version).public == one.version.public
        ]
        return any(source in series for position in judged_here or positions for source in position.sources)

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


_WAY = "+"
"""Separator between a mode and the ways of a run that are not the default ones."""


@dataclass(frozen=True)
class VersionSeries:
    """A version of a framework on a device, as the user asked for it, in a mode."""

    version: str
    device: str
    mode: str

    def __str__(self) -> str:
        return f"{self.version} {self.device} {self.mode}"


def join_ways(mode: str, ways: Iterable[str]) -> str:
    """Return the mode of a series: the framework's mode, followed by the ways."""
    return _WAY.join((mode, *ways))


def split_ways(mode: str) -> tuple[str, list[str]]:
    """Return the mode of a series, split into the framework's mode and the ways."""
    framework_mode, *ways = mode.split(_WAY)
    return framework_mode, ways


def drop_ways(mode: str) -> str:
    """Return the framework's mode in the mode of a series."""
    return split_ways(mode)[0]


def parse_version(framework: str, version: str) -> Version:
    """Return a comparable version.

    Raises:
        ValueError: the version does not follow PEP 440.
    """
    try:
        return Version(version)
    except InvalidVersion:
        raise ValueError(f"{framework}: version {version!r} is not a PEP 440 version") from None


class _Remoteness(NamedTuple):
    """Distance of the judged series of one device and mode from a run; the first field that differs decides.

    Attributes:
        mode_index: index of the mode among the framework's modes.
        negative_count: minus the number of series.
        device, mode: break ties.
    """

    other_mode: bool
    other_mode_without_ways: bool
    other_device: bool
    other_version: bool
    mode_index: int
    is_accelerator: bool
    negative_count: int
    device: str
    mode: str


@dataclass(frozen=True)
class Position:
    """The series of a run among the judged ones.

    Attributes:
        version, device, mode: the series of the run.
        judged: the series with a snapshot; if there are none, the run's own counts as judged.
        modes: the framework's modes, the default first.
    """

    version: Version
    device: str
    mode: str
    judged: tuple[VersionSeries, ...]
    modes: tuple[str, ...] = ()

    @cached_property
    def confirmed(self) -> bool:
        """Whether known failures are strict: the run's series is judged, or none is."""
        return not self.judged or (self.is_here(self.sources[0]) and self._has_version(self.sources[0]))

    @cached_property
    def sources(self) -> tuple[VersionSeries, ...]:
        """The judged series whose snapshots apply: the nearest and, if its version differs, one on the other side."""
        if not self.judged:
            return ()
        candidates = sorted(self._nearest_group(), key=lambda series: Version(series.version))
        for series in candidates:
            if self._has_version(series):
                return (series,)
        below = [series for series in candidates if Version(series.version) < self.version][-1:]
        above = [series for series in candidates if Version(series.version) > self.version][:1]
        other_builds = [series for series in below + above if Version(series.version).public == self.version.public]
        nearest = (other_builds or below or above)[0]
        return nearest, *(series for series in below + above if series != nearest)

    def label(self, series: VersionSeries) -> str:
        """Return the name of a judged series: only its version if device and mode are those of the run."""
        return series.version if self.is_here(series) else str(series)

    def is_here(self, series: VersionSeries) -> bool:
        """Return whether a judged series has the device and mode of the run, with the run's ways or without any."""
        return series.device == self.device and series.mode in (self.mode, drop_ways(self.mode))

    def _nearest_group(self) -> list[VersionSeries]:
        """Return the judged series of one device and mode, the nearest to the run."""
        groups: dict[tuple[str, str], list[VersionSeries]] = {}
        for series in self.judged:
            groups.setdefault((series.device, series.mode), []).append(series)

        def remoteness(group: list[VersionSeries]) -> _Remoteness:
            device, mode = group[0].device, group[0].mode
            return _Remoteness(
                other_mode=mode != self.mode,
                other_mode_without_ways=mode != drop_ways(self.mode),
                other_device=device != self.device,
                other_version=not any(map(self._has_version, group)),
                mode_index=self.modes.index(mode) if mode in self.modes else len(self.modes),
                is_accelerator=device != "cpu",
                negative_count=-len(group),
                device=device,
                mode=mode,
            )

        return min(groups.values(), key=remoteness)

    def _has_version(self, series: VersionSeries) -> bool:
        judged = Version(series.version)
        return judged == (self.version if judged.local else Version(self.version.public))
