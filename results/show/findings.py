"""The findings behind a record's known failures, as data and as Markdown: by class, the worst consequence first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results.record.model import Outcome
from results.record.reading import Record
from results.record.values import Consequence, FindingKind, FindingText
from results.show.clauses import code, is_url, source, words

HEADINGS: Mapping[FindingKind, str] = {
    FindingKind.DEFECT: "Defects",
    FindingKind.DOCUMENTED: "Documented, or by design",
    FindingKind.NUMERICS: "Numerics",
    FindingKind.LIMITATION: "Limitations",
}
UNCLASSED = "Unclassified"
"""Heading of known failures in records that are older than findings."""


@dataclass(frozen=True)
class ListedFinding:
    """One cause of known failures, and the cases that it fails.

    Attributes:
        id: its slug; "" in records that are older than findings, where each pair of reason and link is one finding.
        text: its text, None in such records.
        cases: the failing cases by clause.
    """

    id: str
    text: FindingText | None
    reason: str
    link: str
    cases: Mapping[str, tuple[str, ...]]

    @property
    def order(self) -> tuple[int, int, str]:
        """By class, then by consequence, the worst first; those without a class last."""
        if self.text is None:
            return len(FindingKind), 0, self.reason
        return list(FindingKind).index(self.text.kind), self.text.consequence.rank, self.id


def findings(record: Record) -> tuple[ListedFinding, ...]:
    """The findings behind the record's known failures, in order."""
    cases: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for verdict in record.verdicts:
        if verdict.outcome is Outcome.KNOWN:
            key = (verdict.finding, *(("", "") if verdict.finding else (verdict.reason, verdict.link)))
            cases.setdefault(key, {}).setdefault(verdict.clause, []).append(verdict.case)
    result = []
    for (name, reason, link), by_clause in cases.items():
        text = record.findings.get(name)
        cases_by_clause = {clause: tuple(sorted(filter(None, those))) for clause, those in sorted(by_clause.items())}
        result.append(
            ListedFinding(name, text, text.reason if text else reason, text.link if text else link, cases_by_clause)
        )
    return tuple(sorted(result, key=lambda finding: finding.order))


def by_consequence(record: Record) -> dict[FindingKind, Counter[Consequence]]:
    """The number of findings behind the record's known failures, by class and consequence."""
    counts: dict[FindingKind, Counter[Consequence]] = {}
    for finding in findings(record):
        if finding.text is not None:
            counts.setdefault(finding.text.kind, Counter())[finding.text.consequence] += 1
    return counts


def list_by_class(listed: Sequence[ListedFinding]) -> Iterator[str]:
    """Findings as Markdown lists, each class under its name."""
    names = [HEADINGS[finding.text.kind] if finding.text else UNCLASSED for finding in listed]
    for index, (name, finding) in enumerate(zip(names, listed, strict=True)):
        if name not in names[:index]:
            yield from (*([""] if index else []), f"**{name}**", "")
        yield line(finding)


def line(finding: ListedFinding) -> str:
    """One finding as an item of a Markdown list."""
    lead = f"**{finding.text.consequence}**: " if finding.text else ""
    clauses = ", ".join(code(clause) for clause in finding.cases)
    tests = sum(max(1, len(cases)) for cases in finding.cases.values())
    where = source(finding.link) if finding.text is None or is_url(finding.link) else ""
    return f"- {lead}{words(finding.reason) or 'no reason given'} {clauses} ({tests} tests){where}"
