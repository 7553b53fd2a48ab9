"""Confirms an adapter's expectations by records of a version: versions, devices and modes are updated."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from packaging.version import Version

from conformance.known_failures.entries import EXPECTATION, KERNELS, Expectation, Known
from conformance.known_failures.judged_series import Judged, Place, VersionSeries, every_version, merged, parsed
from conformance.known_failures.toml_edit import Part, check, edited, without_findings
from conformance.known_failures.version_ranges import contains, rewritten
from conformance.known_failures.widening import (
    ExclusionUpdate,
    alone,
    judged_elsewhere,
    means,
    narrowed,
    versions_of,
    widened,
)
from conformance.spec.clauses import load_clauses
from conformance.test_ids.inventory import inventory
from results.record.outcomes import REFUSED, Outcome
from results.record.reading import Record, TestVerdict

FAILED = frozenset({Outcome.KNOWN, Outcome.FAIL, Outcome.ERROR, Outcome.TIMEOUT, Outcome.CRASH})
_UNSURE = frozenset({Outcome.ABSTAIN, Outcome.UNSTABLE})


class _CaseState(Enum):
    """What records say about one case.

    YES: it fails as the entry says. NO: it does not, or is not there. EITHER: the framework refuses what it needs.
    BEFORE: no evidence, so that the nearest judged series decides.
    """

    YES = "yes"
    NO = "no"
    EITHER = "either"
    BEFORE = "before"


class ConfirmError(Exception):
    """Records cannot confirm a version; problem and remedy in one line each."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Confirmation:
    """The update of an adapter's file.

    Attributes:
        text: the whole new file.
        series: the judged series, one for each record.
        judged: every series that was judged, those of the records among them.
        changes: clause (or finding of an exclusion), former versions and new ones of each entry that changed, a split
            one by its parts, with device and mode where these are new; "dropped" for one that would apply in no judged
            series.
        unnamed: failures that no entry names.
    """

    text: str
    series: tuple[VersionSeries, ...]
    judged: Judged
    changes: tuple[tuple[str, str, str], ...]
    unnamed: tuple[TestVerdict, ...]


def confirm(records: Sequence[Record], known: Known, text: str) -> Confirmation:
    """The update of an adapter's file by records of one version.

    Args:
        known: content of the file.
        text: present text of the file.

    Raises:
        ConfirmError: a record is of an interrupted run, of selected tests, of another seed, version or framework, or no
            entry can express the result.
    """
    for record in records:
        _refuse(record, records[0])
    return _Confirmation(tuple(records), known).file(text)


@dataclass(frozen=True)
class _Confirmation:
    """Records of one version of one adapter, compared with its expectations."""

    records: tuple[Record, ...]
    known: Known

    @property
    def _framework(self) -> str:
        return self.records[0].series.framework

    @cached_property
    def version(self) -> str:
        """The version to judge, with its local label if those that were judged in the records' modes have one."""
        here = parsed(self._framework, self.records[0].variant.framework_version)
        places = {_where(record) for record in self.records}
        judged = {where: self._before[where] for where in places if where in self._before} or self._before
        return str(here) if any(Version(each).local for each in every_version(judged)) else here.public

    @property
    def _before(self) -> Judged:
        """Series judged without these records."""
        return self.known.judged.get(self._framework, {})

    @cached_property
    def judged(self) -> Judged:
        """Every judged series, those of the records among them."""
        return merged(self._before, dict.fromkeys(map(_where, self.records), (self.version,)))

    def file(self, text: str) -> Confirmation:
        """The update of the file's text."""
        parts: dict[int, tuple[Part, ...]] = {}
        changes: list[tuple[str, str, str]] = []
        for place, entry in enumerate(self.known.expectations):
            same = Part(entry.versions)
            each = self._parts(place, entry)
            if each != (same,):
                parts[place] = each
                texts = [str(part) for part in each if str(part) != str(same)] if each else ["dropped"]
                changes += [(entry.clause, entry.versions, new) for new in texts]
        try:
            after = edited(text, parts, self.judged)
            places = tuple(map(_where, self.records))
            excluded = ExclusionUpdate(self.known, after, self.version, places, self._before, self.judged).parts()
            after = edited(after, {}, self.judged, excluded)
            check(text, after, parts, self.judged, excluded)
            after = without_findings(after, self._idle(after))
        except ValueError as error:
            raise ConfirmError(str(error), "nothing was changed") from None
        for place, news in excluded.items():
            exclusion = self.known.exclusions[place]
            name = f"exclusion of {exclusion.finding.id}"
            changes.append((name, exclusion.versions, str(news[0]) if news else "dropped"))
        self._refuse_twins(after)
        series = tuple(VersionSeries(self.version, *_where(record)) for record in self.records)
        return Confirmation(after, series, self.judged, tuple(changes), tuple(self._unnamed()))

    def _idle(self, text: str) -> list[str]:
        """Findings whose last entry was dropped, and that no workaround or exclusion names."""
        content = tomllib.loads(text)
        tables = [entry for heading in ("expectation", "workaround", "exclusion") for entry in content.get(heading, ())]
        used = {table["finding"] for table in tables}
        return [finding.id for finding in self.known.findings if finding.id not in used and not finding.causes]

    def _parts(self, place: int, entry: Expectation) -> tuple[Part, ...]:
        """The updated entry, or several if it fails only in some cases, on some devices or in some modes."""
        try:
            return self._grown(entry, self._parts_by_record(entry))
        except ValueError as error:
            where = f"expectation {place + 1} ({entry.clause}, {entry.versions})"
            raise ConfirmError(f"{where} {error}", "edit it by hand") from None

    def _parts_by_record(self, entry: Expectation) -> tuple[Part, ...]:
        """The entry by records of its devices and modes: one, or one for the cases that fail and one for the others."""
        meant, same = self._meant(entry), Part(entry.versions)
        if not meant:
            return (same,)
        meeting = [record for record in meant if self._shows(record, entry)]
        states = self._cases(entry, meeting) or dict.fromkeys(entry.cases or ("",), self._formerly(entry, meant))
        failing = tuple(case for case, state in states.items() if state is _CaseState.YES)
        holding = tuple(case for case, state in states.items() if state is _CaseState.NO)
        judged = versions_of(self.judged, entry.device, entry.mode)
        former = {each for each in judged if contains(entry.versions, each)}
        if self.version not in former and failing and all(self._named(entry, case, meant) for case in failing):
            return (same,)
        places = set(map(_where, self.records))
        if others := judged_elsewhere(entry.device, entry.mode, self.version, places, self._before):
            here = [_where(record) for record in meant]
            less: Part | None = same
            if holding and self.version in former:
                less = narrowed(entry, self.version, here, self.judged)
            if less is None:
                raise ValueError(f"no longer fails for {' '.join(here[0])}, but still does for {', '.join(others)}")
            apart = failing if less is not same or self.version not in former else ()
            return (less, *(alone(self.version, where, self.judged, apart) for where in here if apart))
        with_it, without = former | {self.version}, former - {self.version}
        if holding and not failing and not without:
            return ()
        if not failing or not holding:
            return (Part(rewritten(entry.versions, with_it if failing else without, judged)),)
        if not entry.cases:
            raise ValueError(f"fails only in some cases ({', '.join(failing[:3])}, ...); list its cases")
        first = tuple(case for case in entry.cases if case not in holding)
        begun = Part(rewritten(entry.versions, with_it, judged), first)
        return (begun, Part(rewritten(entry.versions, without, judged), holding)) if without else (begun,)

    def _grown(self, entry: Expectation, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """The entry, updated for new devices and modes."""
        whole: list[tuple[str, str]] = []
        new: list[Part] = []
        for record in self._inferring(entry):
            states = self._cases(entry, [record])
            failing = tuple(case for case, state in states.items() if state is _CaseState.YES)
            if failing and set(states.values()) <= {_CaseState.YES, _CaseState.EITHER}:
                whole.append(_where(record))
            elif failing:
                new.append(alone(self.version, _where(record), self.judged, failing))
        if whole and parts and parts[0] == Part(parts[0].versions):
            wider = widened(entry, parts[0].versions, self.version, whole, self.judged)
            if wider is not None:
                return (wider, *parts[1:], *new)
        return (*parts, *(alone(self.version, where, self.judged, entry.cases or None) for where in whole), *new)

    def _cases(self, entry: Expectation, records: Sequence[Record]) -> Mapping[str, _CaseState]:
        """The records' evidence for each case of an entry, empty without records."""
        cases = entry.cases or tuple(
            {v.case: None for record in records for v in record.verdicts if entry.covers(v.clause, v.case)}
        )
        states: dict[str, _CaseState] = {}
        for case in cases if records else ():
            each = {self._state(record, entry, case) for record in records} - {_CaseState.EITHER}
            if _CaseState.BEFORE in each:
                each = (each - {_CaseState.BEFORE}) or {self._formerly(entry, records)}
            if len(each) > 1:
                problem = f"{entry.clause}, {case}: fails in one mode and not in another"
                raise ConfirmError(problem, "set its mode by hand")
            states[case] = each.pop() if each else _CaseState.EITHER
        return states

    def _formerly(self, entry: Expectation, records: Sequence[Record]) -> _CaseState:
        """The entry's claim about the records' series."""
        if not any(self._says(entry, record) for record in records):
            return _CaseState.NO
        meant = any(means(entry.device, entry.mode, _where(each)) for each in records)
        return _CaseState.YES if meant else _CaseState.BEFORE

    def _says(self, entry: Expectation, record: Record) -> bool:
        return entry.bearing(Place(Version(self.version), *_where(record), self._before)) is not None

    def _named(self, entry: Expectation, case: str, records: Sequence[Record]) -> bool:
        """Whether another entry names the same failure at the version in the records' series."""
        others = (
            each
            for each in self.known.expectations
            if (each.finding, each.signature) == (entry.finding, entry.signature) and each != entry
        )
        return any(
            other.covers(entry.clause, case)
            and contains(other.versions, self.version)
            and all(means(other.device, other.mode, _where(r)) and self._shows(r, other) for r in records)
            for other in others
        )

    def _meant(self, entry: Expectation) -> list[Record]:
        """Records of the devices and modes that the entry is written for."""
        return [each for each in self.records if means(entry.device, entry.mode, _where(each))]

    @staticmethod
    def _shows(record: Record, entry: Expectation) -> bool:
        """Whether a run on this processor and at this seed can show the failure."""
        return entry.means(record.variant.instruction_sets) and entry.says_something_at(record.seed)

    def _inferring(self, entry: Expectation) -> list[Record]:
        """Records of devices or modes that nobody had judged, and that the entry is taken for from the nearest one."""
        others = [each for each in self.records if not means(entry.device, entry.mode, _where(each))]
        return [record for record in others if self._shows(record, entry) and self._says(entry, record)]

    @staticmethod
    def _state(record: Record, entry: Expectation, case: str) -> _CaseState:
        meant = [v for v in record.verdicts if entry.covers(v.clause, v.case) and v.case == case and not _stray(v)]
        if not meant:
            return _CaseState.BEFORE if _exists(case) else _CaseState.NO
        verdict = meant[0]
        if verdict.outcome in _UNSURE:
            return _CaseState.BEFORE
        if verdict.outcome in REFUSED:
            return _CaseState.EITHER
        if entry.depends_on == KERNELS and verdict.outcome is Outcome.PASS:
            return _CaseState.BEFORE
        same = entry.allows(verdict.signature) and verdict.finding in ("", entry.finding.id)
        return _CaseState.YES if verdict.outcome in FAILED and same else _CaseState.NO

    def _unnamed(self) -> Iterator[TestVerdict]:
        for record in self.records:
            entries = [
                entry
                for entry in self.known.expectations
                if self._shows(record, entry)
                and (means(entry.device, entry.mode, _where(record)) or self._says(entry, record))
            ]
            for verdict in record.verdicts:
                covered = [entry for entry in entries if entry.covers(verdict.clause, verdict.case)]
                named = any(self._state(record, entry, verdict.case) is _CaseState.YES for entry in covered)
                if verdict.outcome.bad and verdict.outcome is not Outcome.FIXED and not named and not _stray(verdict):
                    yield verdict

    def _refuse_twins(self, text: str) -> None:
        places: set[tuple[object, ...]] = set()
        for number, entry in enumerate(tomllib.loads(text).get("expectation", ()), 1):
            words = (entry["clause"], entry["versions"], entry.get("device", "*"), entry.get("mode", "*"))
            place = (*words, entry.get("processor", "*"), frozenset(entry.get("cases", ())))
            if place in places:
                problem = f"expectation {number} ({words[0]}) would be the same as another"
                raise ConfirmError(problem, "merge them by hand")
            places.add(place)


def _where(record: Record) -> tuple[str, str]:
    return record.series.device, record.series.mode


def _stray(verdict: TestVerdict) -> bool:
    """Whether a verdict is about an unmatched entry instead of the framework."""
    return verdict.case.startswith(EXPECTATION)


def _exists(case: str) -> bool:
    """Whether the suites have the test: a record may lack it if it is older, or of a CPU with other cases."""
    return case.partition("[")[0] in inventory()


def _refuse(record: Record, first: Record) -> None:
    name = f"the record of {record.series.framework} {record.variant.framework_version}"
    if record.status == "interrupted":
        raise ConfirmError(f"{name} is of an interrupted run", "run the suites to their end")
    if record.selection or record.status == "partial":
        raise ConfirmError(f"{name} is of selected tests only ({record.selection or 'partial'})", "run all tests")
    if record.seed:
        raise ConfirmError(f"{name} is of seed {record.seed}", "run the suites at seed 0")
    here = record.series.framework, record.variant.framework_version
    if here != (first.series.framework, first.variant.framework_version):
        raise ConfirmError(
            f"{name} is of another framework or version than the first record", "confirm them separately"
        )
    present = load_clauses()
    if any(name in present and text.revision != present[name].revision for name, text in record.clauses.items()):
        raise ConfirmError(f"{name} is of older revisions of clauses", "run the suites again")


def summary_lines(changes: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """One line for each kind of change: former and new versions, with the clauses of the entries."""
    by_range: dict[tuple[str, str], list[str]] = {}
    for clause, old, new in changes:
        by_range.setdefault((old, new), []).append(clause)
    for (old, new), clauses in by_range.items():
        yield f"{old} → {new}: {', '.join(dict.fromkeys(clauses))} ({len(clauses)})"
