"""Writes the snapshot of a series from a record, and new findings."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from conformance.known_failures.entries import EXPECTATION, KERNELS, Expectation, Known, VersionSeries, parse_version
from conformance.spec.clauses import load_clauses
from conformance.spec.findings import Finding
from conformance.test_ids.inventory import inventory
from results.record.model import REFUSED, Outcome, TestVerdict
from results.record.reading import Record

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


def table_of(values: Mapping[str, str]) -> str:
    """Return the table of a new finding, to append to the file of findings."""
    lines = (f"{key} = {json.dumps(str(value), ensure_ascii=False)}" for key, value in values.items())
    return "\n".join(("[[finding]]", *lines, ""))


def find_idle(known: Known, update: Collection[Update]) -> list[str]:
    """Return the ids of findings that nothing names once the snapshots are written."""
    written = {one.series for one in update}
    entries = [entry for entry in known.expectations if entry.series not in written]
    used = {entry.finding.id for entry in (*entries, *(entry for one in update for entry in one.after))}
    used |= {one.finding.id for one in known.workarounds} | {one.finding.id for one in known.exclusions}
    return sorted(finding.id for finding in known.findings if finding.id not in used and not finding.causes)
