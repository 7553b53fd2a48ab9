"""What records of a version confirm of an adapter's expectations: the ranges are written anew from what they show."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from packaging.version import Version

from conformance.expectations.entries import EXPECTATION, Expectation, Known
from conformance.expectations.judged_versions import Place, ordered, parsed
from conformance.expectations.toml_lines import Part, check, edited, without_findings
from conformance.expectations.version_ranges import contains, rewritten
from conformance.inventory.tests import inventory
from conformance.spec.clauses import load_clauses
from results.record.outcomes import REFUSED, Outcome
from results.record.reading import Record, TestVerdict

FAILED = frozenset({Outcome.KNOWN, Outcome.FAIL, Outcome.ERROR, Outcome.TIMEOUT, Outcome.CRASH})
_UNSURE = frozenset({Outcome.ABSTAIN, Outcome.UNSTABLE})


class _Shown(Enum):
    """What records show of one case.

    YES: it fails as the entry says. NO: it does not, or is not there. EITHER: the framework refuses what it needs.
    BEFORE: nothing that counts, so that it is as in the nearest judged version.
    """

    YES = "yes"
    NO = "no"
    EITHER = "either"
    BEFORE = "before"


class ConfirmError(Exception):
    """Records cannot confirm a version, for a problem in one line; the remedy says what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Confirmed:
    """What an adapter's file becomes.

    Attributes:
        text: the whole new file.
        version: the version that is judged now.
        changes: clause, former versions and new ones of each entry that changed, a split one by its parts; of one
            that would hold in no judged version, "dropped".
        taken: clauses of entries that no record shows, taken over as in the nearest judged version.
        unnamed: failures that no entry names.
    """

    text: str
    version: str
    changes: tuple[tuple[str, str, str], ...]
    taken: tuple[str, ...]
    unnamed: tuple[TestVerdict, ...]


def confirm(records: Sequence[Record], known: Known, text: str) -> Confirmed:
    """What an adapter's file becomes by records of one version.

    Args:
        known: what the file says.
        text: the file as it stands.

    Raises:
        ConfirmError: a record is of an interrupted run, of some tests, of another seed, version or framework, or what
            they show cannot be expressed.
    """
    for record in records:
        _refuse(record, records[0])
    return _Confirmation(tuple(records), known).file(text)


@dataclass(frozen=True)
class _Confirmation:
    """Records of one version of one adapter, held against its expectations."""

    records: tuple[Record, ...]
    known: Known

    @property
    def _framework(self) -> str:
        return self.records[0].series.framework

    @cached_property
    def version(self) -> str:
        """The version as it is to be judged: with its local label where companions are named."""
        here = parsed(self._framework, self.records[0].variant.framework_version)
        before = self.known.judged.get(self._framework, ())
        return str(here) if any(Version(each).local for each in before) else here.public

    @cached_property
    def judged(self) -> tuple[str, ...]:
        """Every judged version, this one among them."""
        return ordered(self._framework, {*self.known.judged.get(self._framework, ()), self.version})

    @property
    def _before(self) -> Place:
        """The version among those that were judged without these records."""
        return Place(Version(self.version), tuple(each for each in self.judged if each != self.version))

    def file(self, text: str) -> Confirmed:
        """What the file becomes, given its text."""
        parts: dict[int, tuple[Part, ...]] = {}
        changes: list[tuple[str, str, str]] = []
        for place, entry in enumerate(self.known.expectations):
            parts[place] = self._parts(place, entry)
            ranges = [part.versions for part in parts[place] if part.versions != entry.versions]
            changes += [(entry.clause, entry.versions, each) for each in (ranges if parts[place] else ["dropped"])]
        parts = {n: each for n, each in parts.items() if each != (Part(self.known.expectations[n].versions),)}
        try:
            after = edited(text, parts, self.judged)
            check(text, after, parts, self.judged)
            after = without_findings(after, self._idle(after))
        except ValueError as error:
            raise ConfirmError(str(error), "nothing was changed") from None
        self._refuse_twins(after)
        taken = tuple(entry.clause for entry in self.known.expectations if not self._meeting(entry))
        return Confirmed(after, self.version, tuple(changes), taken, tuple(self._unnamed()))

    def _idle(self, text: str) -> list[str]:
        """Findings of which the last entry was dropped, and that no workaround and no exclusion names."""
        content = tomllib.loads(text)
        tables = [entry for heading in ("expectation", "workaround", "exclusion") for entry in content.get(heading, ())]
        used = {table["finding"] for table in tables}
        return [finding.id for finding in self.known.findings if finding.id not in used]

    def _parts(self, place: int, entry: Expectation) -> tuple[Part, ...]:
        """The entry as it is to be: one, or one for the cases that fail and one for those that do not."""
        shown = self._cases(entry)
        failing = tuple(case for case, state in shown.items() if state is _Shown.YES)
        holding = tuple(case for case, state in shown.items() if state is _Shown.NO)
        former = {each for each in self.judged if contains(entry.versions, each)}
        with_it, without = former | {self.version}, former - {self.version}
        try:
            if holding and not failing and not without:
                return ()
            if not failing or not holding:
                return (Part(rewritten(entry.versions, with_it if failing else without, self.judged)),)
            if not entry.cases:
                raise ValueError(f"fails in some cases only, in {', '.join(failing[:3])} and so on; list its cases")
            first = tuple(case for case in entry.cases if case not in holding)
            second = Part(rewritten(entry.versions, without, self.judged), holding) if without else None
            begun = Part(rewritten(entry.versions, with_it, self.judged), first)
            return (begun, second) if second else (begun,)
        except ValueError as error:
            where = f"expectation {place + 1} ({entry.clause}, {entry.versions})"
            raise ConfirmError(f"{where} {error}", "change it by hand") from None

    def _cases(self, entry: Expectation) -> Mapping[str, _Shown]:
        """What the records show of each case of an entry."""
        meeting = self._meeting(entry)
        before = _Shown.YES if self._holds_before(entry) else _Shown.NO
        if not meeting:
            return dict.fromkeys(entry.cases or ("",), before)
        cases = entry.cases or tuple(
            {v.case: None for record in meeting for v in record.verdicts if entry.covers(v.clause, v.case)}
        )
        states: dict[str, _Shown] = {}
        for case in cases:
            each = {self._state(record, entry, case) for record in meeting} - {_Shown.EITHER}
            if _Shown.BEFORE in each:
                each = (each - {_Shown.BEFORE}) or {before}
            if len(each) > 1:
                problem = f"{entry.clause}, {case}: fails in one mode and not in another"
                raise ConfirmError(problem, "name the mode by hand")
            states[case] = each.pop() if each else _Shown.EITHER
        return states

    def _holds_before(self, entry: Expectation) -> bool:
        place = self._before
        again = self.version in self.known.judged.get(self._framework, ())
        return contains(entry.versions, self.version if again or not place.judged else place.nearest)

    def _meeting(self, entry: Expectation) -> list[Record]:
        return [each for each in self.records if meets(entry, each) and entry.says_something_at(each.seed)]

    @staticmethod
    def _state(record: Record, entry: Expectation, case: str) -> _Shown:
        meant = [v for v in record.verdicts if entry.covers(v.clause, v.case) and v.case == case and not _stray(v)]
        if not meant:
            return _Shown.BEFORE if _exists(case) else _Shown.NO
        verdict = meant[0]
        if verdict.outcome in _UNSURE:
            return _Shown.BEFORE
        if verdict.outcome in REFUSED:
            return _Shown.EITHER
        same = verdict.signature == entry.signature and verdict.finding in ("", entry.finding.id)
        return _Shown.YES if verdict.outcome in FAILED and same else _Shown.NO

    def _unnamed(self) -> Iterator[TestVerdict]:
        for record in self.records:
            entries = [entry for entry in self.known.expectations if record in self._meeting(entry)]
            for verdict in record.verdicts:
                covered = [entry for entry in entries if entry.covers(verdict.clause, verdict.case)]
                named = any(self._state(record, entry, verdict.case) is _Shown.YES for entry in covered)
                if verdict.outcome.bad and verdict.outcome is not Outcome.FIXED and not named and not _stray(verdict):
                    yield verdict

    def _refuse_twins(self, text: str) -> None:
        places: set[tuple[object, ...]] = set()
        for number, entry in enumerate(tomllib.loads(text).get("expectation", ()), 1):
            words = (entry["clause"], entry["versions"], entry.get("device", "*"), entry.get("mode", "*"))
            place = (*words, entry.get("processor", "*"), frozenset(entry.get("cases", ())))
            if place in places:
                raise ConfirmError(
                    f"expectation {number} ({words[0]}) would be the same as another", "merge them by hand"
                )
            places.add(place)


def meets(entry: Expectation, record: Record) -> bool:
    """Whether an entry is about runs such as the record's, whatever the version."""
    series = record.series
    return entry.meets(series.framework, series.device, series.mode, record.variant.instruction_sets)


def _stray(verdict: TestVerdict) -> bool:
    """Whether a verdict is about an entry that matched no test, rather than about the framework."""
    return verdict.case.startswith(EXPECTATION)


def _exists(case: str) -> bool:
    """Whether the suites have the test: a record without the case is of earlier ones, or of a CPU that draws others."""
    return case.partition("[")[0] in inventory()


def _refuse(record: Record, first: Record) -> None:
    name = f"the record of {record.series.framework} {record.variant.framework_version}"
    if record.status == "interrupted":
        raise ConfirmError(f"{name} is of an interrupted run", "run the suites to their end")
    if record.selection or record.status == "partial":
        raise ConfirmError(f"{name} is of some tests only ({record.selection or 'partial'})", "run all of them")
    if record.seed:
        raise ConfirmError(f"{name} is of seed {record.seed}", "run the suites at seed 0")
    here = record.series.framework, record.variant.framework_version
    if here != (first.series.framework, first.variant.framework_version):
        raise ConfirmError(f"{name} is of another framework or version than the first", "confirm one after the other")
    present = load_clauses()
    if any(name in present and text.revision != present[name].revision for name, text in record.clauses.items()):
        raise ConfirmError(f"{name} is of clauses that have changed since", "run the suites again")


def told(changes: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Lines that say what changed: entries by their former and new versions, with their clauses."""
    by_range: dict[tuple[str, str], list[str]] = {}
    for clause, old, new in changes:
        by_range.setdefault((old, new), []).append(clause)
    for (old, new), clauses in by_range.items():
        yield f"{old} → {new}: {', '.join(dict.fromkeys(clauses))} ({len(clauses)})"
