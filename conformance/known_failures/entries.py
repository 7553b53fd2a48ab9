"""Known failures as data (clause, framework, versions, signature and finding), and what generated programs avoid.

An entry never skips a test: the test runs, and an entry whose case passes, fails in another way or does not exist is an
error until the entry is changed or removed. In a series that nobody has judged yet, the entries of the nearest judged
series apply, and verdicts based on them are marked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from conformance.known_failures.judged_series import (
    Judged,
    Place,
    Relevance,
    Versions,
    VersionSeries,
    every_version,
    merged,
    parsed,
)
from conformance.spec.findings import ANY, Finding, Workaround, matched

EXPECTATION = "expectation: "
"""Prefix of the case in a verdict about an unmatched entry."""

SEED, OTHER_SEEDS, KERNELS = "seed", "other-seeds", "kernels"
"""What a failure may depend on: seeds, or how a processor's kernels round."""


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
        signature: the slug under which the suite reports the failure; several with "|" if it has several causes.
        finding: the cause.
        spoils_process: whether the failure affects later tests in the same process; such cases run last.
        depends_on: "seed" if the failure occurs at seed 0 and may not at others, "other-seeds" if it occurs only at
            some other seeds, so that the entry does not apply at seed 0, "kernels" if it may not occur where a
            processor's kernels round otherwise, else "".
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

    def allows(self, signature: str) -> bool:
        """Whether the failure may have this signature."""
        return signature in self.signature.split("|")

    def bearing(self, place: Place) -> Relevance | None:
        """How the entry applies to a series, on any processor; None if it does not."""
        return place.bearing(self.versions, self.device, self.mode)

    def means(self, instructions: Collection[str]) -> bool:
        """Whether the entry applies to processors with these instruction sets; an entry that needs one does not if none
        is listed."""
        return all(matched(words, instructions) for words in (self.processor, self.finding.processor))

    def says_something_at(self, seed: int) -> bool:
        """Whether the entry applies to runs at this seed."""
        return seed != 0 or self.depends_on != OTHER_SEEDS

    def taken(self, bearing: Relevance, seed: int) -> Expectation:
        """The entry for a run of a series at a seed."""
        may_pass = not bearing.settled or self.depends_on == KERNELS or (self.depends_on != "" and seed != 0)
        return replace(self, inferred_from=bearing.inferred_from, may_pass=may_pass)

    def covers(self, clause: str, case: str) -> bool:
        """Whether the entry covers this case of this clause; a test without parameters has the case ""."""
        return clause == self.clause and (not self.cases or case in self.cases)


@dataclass(frozen=True)
class Exclusion:
    """A condition under which a finding occurs; programs that meet it are not generated.

    Attributes:
        finding: the defect.
        versions: PEP 440 specifiers of the affected versions.
        device, mode: a name, several with commas, or "*" for all.
        when: features of `conformance.generative.programs.features`, all of which a program has.
        processor: as for an expectation.
    """

    finding: Finding
    versions: str
    device: str
    mode: str
    when: tuple[str, ...]
    processor: str = ANY

    def leaves_out(self, features: Collection[str]) -> bool:
        """Whether a program with these features is excluded; "kind=a|b" in `when` stands for either of two."""
        return all(any(each in features for each in _alternatives(word)) for word in self.when)


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
                each
                for each in self.exclusions
                if place.bearing(each.versions, each.device, each.mode) is not None
                and matched(each.processor, instructions)
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
