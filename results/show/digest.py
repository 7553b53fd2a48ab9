"""Records in brief, as Markdown for the summary of a CI job: counts, what needs action, known failures folded."""

from collections.abc import Iterator, Mapping, Sequence

from results.record.model import Outcome
from results.record.reading import Record, TestVerdict
from results.show.clauses import Count, code, cut, html, tally, title, total, words
from results.show.findings import findings, list_by_class
from results.show.table import CAPTION, notes, troubles


def markdown(records: Sequence[Record]) -> str:
    """The digest, which says so if it had to be cut to `marks.LIMIT`; text of the records only shows itself."""
    return cut(_lines(records))


def _lines(records: Sequence[Record]) -> Iterator[str]:
    bad = [(record, verdict) for record in records for verdict in record.verdicts if verdict.outcome.bad]
    yield f"## Conformance: {_headline(records, bad)}"
    yield ""
    yield from _table(records)
    yield ""
    yield CAPTION
    yield ""
    for note in notes(records):
        yield f"- {words(note)}"
    if bad:
        yield ""
        yield f"### Needs action: {len({verdict.clause for _, verdict in bad})} clauses, {len(bad)} tests"
        yield ""
        yield from (_action(record, verdict) for record, verdict in bad)
        yield ""
    yield from _list_known(records)


def _headline(records: Sequence[Record], bad: Sequence[tuple[Record, TestVerdict]]) -> str:
    clauses = {verdict.clause for record in records for verdict in record.verdicts}
    tests = sum(len(record.verdicts) for record in records)
    if bad:
        concerned = {verdict.clause for _, verdict in bad}
        return f"{len(concerned)} of {len(clauses)} clauses need action ({len(bad)} of {tests} tests)"
    unfinished = sum(1 for record in records if troubles(record))
    if unfinished:
        return f"{unfinished} of {len(records)} runs did not finish"
    return f"no action needed in {len(clauses)} clauses ({tests} tests)"


def _table(records: Sequence[Record]) -> Iterator[str]:
    tallies = [tally(record) for record in records]
    totals = [total(record) for record in records]
    yield f"| clauses | {' | '.join(words(' '.join(title(record))) for record in records)} |"
    yield "|---" * (1 + len(records)) + "|"
    for family in sorted({family for counts in tallies for family in counts}):
        yield f"| {words(family, 40)} | {' | '.join(_format_count(counts.get(family)) for counts in tallies)} |"
    yield f"| **total** | {' | '.join(map(_format_count, totals))} |"
    yield f"| tests | {' | '.join(_cell(count.tests, count.of_what[1:]) for count in totals)} |"


def _format_count(count: Count | None) -> str:
    return _cell(count.clauses, count.of_what) if count else "–"


def _cell(counts: Mapping[Outcome, int], of: Sequence[str]) -> str:
    parts = (
        f"**{counts[outcome]} {outcome}**" if outcome.bad else f"{counts[outcome]} {outcome}"
        for outcome in Outcome
        if counts.get(outcome)
    )
    return f"{' · '.join(parts)} ({', '.join(of)})" if counts else "–"


def _action(record: Record, verdict: TestVerdict) -> str:
    text = words(verdict.message or verdict.reason) or "no message"
    repeat = f"<br>{code(verdict.repro, 500)}" if verdict.repro else ""
    where = words(" ".join(title(record)))
    return f"- **{verdict.outcome}** {code(verdict.test, 200)} ({where}): {text}{repeat}"


def _list_known(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        result = findings(record)
        if result:
            tests = sum(1 for verdict in record.verdicts if verdict.outcome is Outcome.KNOWN)
            heading = html(" ".join(title(record)))
            yield f"<details><summary>{heading}: {tests} known failures, findings: {len(result)}</summary>"
            yield ""
            yield from list_by_class(result)
            yield ""
            yield "</details>"
            yield ""
