"""Known failures as data (test, finding, signatures, processors), and what generated programs avoid.

An entry never skips a test: the test runs, and an entry whose test passes, fails in another way or does not exist is an
error until the snapshot is written again. In a series that nobody has judged yet, the entries of the nearest judged
series apply, and verdicts based on them are marked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet

from conformance.known_failures.series import Position, VersionSeries, merged, parsed
from conformance.spec.findings import ANY, Finding, Workaround, matched, named

EXPECTATION = "expectation: "
"""Prefix of the case in a verdict about an unmatched entry."""

SEED, OTHER_SEEDS, KERNELS = "seed", "other-seeds", "kernels"
"""What a failure may depend on: seeds, or how a processor's kernels round."""


@dataclass(frozen=True)
class Expectation:
    """One known failure of a judged series, a line of its snapshot.

    Attributes:
        clause: id of the clause that does not hold.
        cases: the test of the clause that fails, the only element; () for all in a mode that nobody has judged.
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
        """What goes wrong, in one sentence."""
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
        """Whether the failure may have this signature."""
        return signature in self.signature.split("|")

    def applies(self, instructions: Collection[str], seed: int) -> bool:
        """Whether the entry speaks of runs at this seed on a processor with these instruction sets."""
        return matched(self.processor, instructions) and (seed != 0 or self.depends_on != OTHER_SEEDS)

    def covers(self, clause: str, case: str) -> bool:
        """Whether the entry is of this case of this clause."""
        return clause == self.clause and (not self.cases or case in self.cases)


def explain_repair(entries: Sequence[Expectation]) -> str:
    """Say which expected failure did not occur, and what to do."""
    entry = next(entry for entry in entries if not entry.may_pass)
    origin = f", unlike in {entry.inferred_from}" if entry.inferred_from else ""
    remedy = f"remove its line from {entry.file}, or write the snapshot of this series by `conformance accept RECORD`"
    return f"expected failure of {entry.test} on {entry.framework} did not occur{origin}; {remedy}"


@dataclass(frozen=True)
class Exclusion:
    """A condition under which a finding occurs; programs that meet it are not generated.

    Attributes:
        finding: the defect.
        when: features of `conformance.generative.programs.features`, all of which a program has.
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
        """Whether a program with these features is excluded; "kind=a|b" in `when` stands for either of two."""
        return all(any(each in features for each in _alternatives(word)) for word in self.when)

    def applies(self, series: VersionSeries) -> bool:
        """Whether the finding occurs in a series."""
        return named(self.device, series.device) and named(self.mode, series.mode) and self.affects(series.version)

    def affects(self, version: str) -> bool:
        """Whether the finding occurs in a version, pre-releases included."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)


def _alternatives(word: str) -> list[str]:
    kind, equals, values = word.partition("=")
    return [f"{kind}{equals}{value}" for value in values.split("|")]


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
        version = parsed(framework, series.version)
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
                relax(entry) for entry in self._inferred(framework, position) if entry.applies(instructions, seed)
            ),
            workarounds=tuple(
                workaround
                for workaround in self.workarounds
                if any(named(workaround.mode or ANY, one.mode) for one in related)
            ),
            exclusions=tuple(
                exclusion
                for exclusion in self.exclusions
                if any(map(exclusion.applies, related)) and matched(exclusion.processor, instructions)
            ),
        )

    def _inferred(self, framework: str, position: Position) -> Iterator[Expectation]:
        """The entries of the snapshots that apply to a series.

        One that is inferred from another device or mode, or from one of two versions that disagree, may pass. Findings
        of this device, and in this mode those of versions like this one, are also taken from the nearest snapshot that
        has them.
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

    def expected(self, finding: Finding, version: str) -> bool:
        """Whether an exclusion of the finding affects this version, or its expectations say so.

        They are those of the judged series of this release in the modes that have ever shown the finding; if none of
        these was judged in this release, of the nearest ones.
        """
        if any(one.finding == finding and one.affects(version) for one in self.exclusions):
            return True
        series = {entry.series for entry in self.expectations if entry.finding == finding}
        modes = {(one.device, one.mode) for one in series}
        positions = [self.position(finding.framework, VersionSeries(version, *mode)) for mode in sorted(modes)]
        release = [position for position in positions if position.is_of_release]
        return any(source in series for position in release or positions for source in position.sources)

    def __add__(self, other: Known) -> Known:
        names = self.judged.keys() | other.judged.keys()
        return Known(
            self.findings + other.findings,
            self.expectations + other.expectations,
            self.workarounds + other.workarounds,
            {name: merged(self.judged.get(name, ()), other.judged.get(name, ())) for name in names},
            self.exclusions + other.exclusions,
        )
