"""The outcome of each clause in a run, counts by outcome, findings, and texts of a record that act nowhere."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

from results.record.files import one_line
from results.record.model import REFUSED, UNJUDGED, Consequence, FindingKind, FindingText, Outcome
from results.record.reading import Record, TestVerdict

GRAVITY = (
    Outcome.CRASH,
    Outcome.TIMEOUT,
    Outcome.ERROR,
    Outcome.FAIL,
    Outcome.MISDECLARED,
    Outcome.FIXED,
    Outcome.KNOWN,
    Outcome.UNSTABLE,
    Outcome.ABSTAIN,
    Outcome.NOT_OFFERED,
    Outcome.UNSUPPORTED,
    Outcome.PASS,
)
"""Outcomes by urgency, the most urgent first."""

FAILURE_OUTCOMES = frozenset(GRAVITY) - UNJUDGED - {Outcome.PASS, Outcome.FIXED, Outcome.UNSTABLE}
"""Outcomes of a clause that failed, expected or not."""


def outcome(verdicts: Iterable[TestVerdict]) -> Outcome:
    """The outcome of a clause by the verdicts of its tests: the gravest among those that were not refused.

    So it is `pass` only if every test that was judged passed, `unsupported` only if all of them are, and `not offered`
    if all were refused and for one of them there was nothing to try.

    Raises:
        ValueError: there is no verdict.
    """
    return min({verdict.outcome for verdict in verdicts}, key=lambda one: (one in REFUSED, GRAVITY.index(one)))


def by_clause(record: Record) -> dict[str, list[TestVerdict]]:
    """The verdicts of each clause, the gravest first."""
    grouped: dict[str, list[TestVerdict]] = {}
    for verdict in sorted(record.verdicts, key=lambda verdict: (GRAVITY.index(verdict.outcome), verdict.test)):
        grouped.setdefault(verdict.clause, []).append(verdict)
    return grouped


@dataclass(frozen=True)
class Count:
    """The number of clauses by outcome, and the number of tests."""

    clauses: Counter[Outcome]
    tests: Counter[Outcome]

    @classmethod
    def of(cls, grouped: Iterable[Sequence[TestVerdict]]) -> Self:
        """The count of clauses by the verdicts of each; a clause without a verdict is none."""
        judged = [verdicts for verdicts in grouped if verdicts]
        return cls(Counter(map(outcome, judged)), Counter(verdict.outcome for one in judged for verdict in one))

    @property
    def of_what(self) -> tuple[str, str]:
        """The two denominators in words, such as "30 clauses" and "172 tests"."""
        return number(self.clauses.total(), "clause"), number(self.tests.total(), "test")


def number(count: int, what: str) -> str:
    """A count with its noun, such as "1 clause" or "2 clauses"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def tally(record: Record) -> dict[str, Count]:
    """The count of each family of clauses that has a verdict."""
    families: dict[str, list[list[TestVerdict]]] = {}
    for name, verdicts in by_clause(record).items():
        families.setdefault(record.clauses[name].family, []).append(verdicts)
    return {family: Count.of(members) for family, members in families.items()}


def total(record: Record) -> Count:
    """The count of all clauses of a record."""
    return Count.of(by_clause(record).values())


def is_inferred(verdict: TestVerdict) -> bool:
    """Return whether it is a known failure that was judged in another series only."""
    return verdict.outcome is Outcome.KNOWN and verdict.inferred_from != ""


def describe_unconfirmed(record: Record) -> tuple[str, ...]:
    """A sentence about known failures that were judged in another series only; none if there are none."""
    origins = [verdict.inferred_from for verdict in record.verdicts if is_inferred(verdict)]
    if not origins:
        return ()
    judged, tests = one_line(", ".join(sorted(set(origins)))), number(len(origins), "test")
    return (f"known failures judged in {judged}, not confirmed here: {tests}",)


NAME_LIMIT = 40
"""Largest number of characters that are shown of a name."""

LIMIT = 256 * 1024
"""Largest text in bytes for the summary of a CI job; GitHub accepts 1 MiB for each step, which may add several."""

_URL = re.compile(r"https?://(?![^/?#]*@)[^\s<>\[\]\"'`\\]+")


def title(record: Record) -> tuple[str, ...]:
    """The lines over a record's column: framework, version, mode, device; unless complete, its selection or status."""
    series = record.series
    lines = (series.framework, record.variant.framework_version, series.mode_and_device)
    short = tuple(one_line(line, NAME_LIMIT) for line in lines if line)
    named = record.selection.removeprefix("--tests=") if record.status == "partial" else ""
    status = named if named in ("quick", "core") else record.status
    return short if record.status == "complete" else (*short, status)


def is_url(text: str) -> bool:
    """Return whether the text is a plain web address, without a name or a password in it."""
    return _URL.fullmatch(text) is not None


def code(text: str, limit: int = 120) -> str:
    """The text as a code span, cut to `limit` characters."""
    return f"`{one_line(text, limit).replace('`', chr(39))}`"


def words(text: str, limit: int = 500) -> str:
    """The text without any meaning in Markdown or HTML; it mentions nobody and links to nothing."""
    clean = _inert(one_line(text, limit)).replace("&", "&amp;")
    return _COMMITS.sub(r"`\g<0>`", re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", clean))


def html(text: str, limit: int = 500) -> str:
    """The text without any meaning inside an HTML tag, where Markdown's escapes are not read."""
    return _COMMITS.sub(r"<code>\g<0></code>", escape(_inert(one_line(text, limit))))


_BREAK = "\u200b"
_REFERENCES = re.compile(r"@|#(?=\d)|\bGH-(?=\d)|\b(?:https?|ftp|mailto|xmpp):(?=\S)|\bwww(?=\.)", re.IGNORECASE)
# What may be a commit becomes code, so that it can still be copied.
_COMMITS = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{7,40}\b", re.IGNORECASE)


def _inert(text: str) -> str:
    """Return the text with a zero-width space inside each part that GitHub would link: addresses, names, issues."""
    return _REFERENCES.sub(lambda match: f"{match[0]}{_BREAK}", text)


def source(link: str) -> str:
    """A web address as a link in parentheses, any other text as words, nothing for nothing."""
    if is_url(link):
        return f" ([source]({link.replace('(', '%28').replace(')', '%29')}))"
    return f" ({words(link)})" if link else ""


def cut(lines: Iterable[str], limit: int = LIMIT) -> str:
    """The lines as one text of about `limit` bytes of UTF-8 at most, which says how many lines it leaves out.

    No fold stays open: one is opened by a line that begins with `<details>` and closed by a line `</details>`.
    """
    result: list[str] = []
    size = omitted = folds = 0
    for line in lines:
        size += len(line.encode("utf-8", "replace")) + 1
        if omitted or size > limit:
            omitted += 1
            continue
        result.append(line)
        folds += line.startswith("<details>") - (line == "</details>")
    if omitted:
        result += ["", *["</details>", ""] * folds, f"Cut at {limit // 1024} KiB: {omitted} more lines are left out."]
    return "\n".join(result) + "\n"


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
