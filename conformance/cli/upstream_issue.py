"""A report of findings for a framework's issue tracker, as Markdown: what is wrong, a program, what the clause asks."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.checks.reproducers import ProgramResult
from conformance.known_failures.reading import Expectation
from conformance.spec.clauses import Clause
from conformance.spec.findings import NO_LINK, Finding
from results.record.model import Outcome
from results.record.reading import Record, TestVerdict
from results.record.values import to_line
from results.show.marks import is_url


@dataclass(frozen=True)
class Evidence:
    """A finding with what is known of it.

    Attributes:
        entries: the expectations that rest on it.
        result: what its program showed just now, or in a sentence why it was not run.
    """

    finding: Finding
    entries: tuple[Expectation, ...]
    result: ProgramResult | str


def report(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> str:
    """The report of what a framework does not keep of a clause; `record` is the newest run of it, None without one."""
    return "\n".join(_lines(clause, evidence, record)).rstrip() + "\n"


def _lines(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> Iterator[str]:
    for each in evidence:
        text = each.finding.text
        yield from (f"# {text.reason}", "", f"Class: {text.kind}. Consequence: {text.consequence}.", "")
        if is_url(text.link):
            yield from (f"See also: {text.link} ({text.link_shows})", "")
        elif text.link == NO_LINK:
            yield from ("No earlier report of this was found.", "")
        yield from _program(each)
        yield from clause_lines(clause)
        verdicts = record.verdicts if record else ()
        yield from failed_checks([v for v in verdicts if (v.clause, v.finding) == (clause.id, each.finding.id)])
    yield from _environment(evidence, record)


def _program(each: Evidence) -> Iterator[str]:
    if each.finding.program is None:
        yield from ("## To reproduce", "", "There is no program for this finding.", "")
        return
    yield from ("## To reproduce", "", "```python", each.finding.program.read_text("utf-8").rstrip(), "```", "")
    if isinstance(each.result, ProgramResult):
        state = "shows the failure" if each.result.there else "does not show the failure"
        yield from (f"Run just now with the versions below, it {state}:", "")
        yield from ("```text", f"expected: {each.result.expected}", f"seen: {each.result.observed}", "```", "")
    else:
        yield from (f"Not run just now: {each.result}", "")


def clause_lines(clause: Clause) -> Iterator[str]:
    """What a clause asks, as a section."""
    yield from ("## What is asked", "", f"`{clause.id}` ({clause.level}): {clause.requirement}", "")
    yield from (f"Observed by: {clause.observed_by}", "", f"Source: {clause.source}", "")


def failed_checks(verdicts: Sequence[TestVerdict]) -> Iterator[str]:
    """The failed checks of verdicts as a section with a table; nothing if there are none."""
    failed = [(verdict, check) for verdict in verdicts for check in verdict.checks if not check.passed]
    if not failed:
        return
    yield from ("## What was measured", "", "Against a float64 reference that runs the same recipe.", "")
    yield "| case | what | seen | to be expected |"
    yield "|---|---|---|---|"
    for verdict, check in failed:
        cells = (verdict.case, check.what, _value(check.measured), _value(check.expected))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _value(value: object) -> str:
    return value if isinstance(value, str) else to_line(value)


def _environment(evidence: Sequence[Evidence], record: Record | None) -> Iterator[str]:
    yield from ("## Versions and environment", "")
    if record is None:
        yield f"No run is on record. Python {platform.python_version()}, {platform.platform()}."
        return
    framework = record.series.framework
    versions = sorted({entry.versions for each in evidence for entry in each.entries})
    yield f"- {framework} {record.variant.framework_version}, {record.series.mode}, {record.series.device_kind}"
    yield f"- known in {framework} {', '.join(versions)}"
    yield from (f"- {name}: {value}" for name, value in sorted(record.variant.environment.items()) if value)


def failing(record: Record, clause: str) -> bool:
    """Whether the record has a known failure of the clause."""
    return any(verdict.clause == clause and verdict.outcome is Outcome.KNOWN for verdict in record.verdicts)
