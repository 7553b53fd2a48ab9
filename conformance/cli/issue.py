"""`conformance issue` drafts an issue about a known failure; `bisect` shares its sections on clause and checks."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from conformance.checks.reproducers import ProgramResult
from conformance.cli.options import names
from conformance.cli.spec import clause_ids, clause_of, load_known_failures, run_program
from conformance.known_failures.entries import Expectation
from conformance.spec.clauses import Clause
from conformance.spec.findings import NO_LINK, Finding
from results.record.files import RecordError
from results.record.folders import LAST_RUNS, SHIPPED, list_records
from results.record.model import Outcome
from results.record.reading import Record, TestVerdict, load
from results.record.values import to_line
from results.show.clauses import is_url

BASELINES = SHIPPED / "baselines"


@click.command()
@click.argument("identifier", metavar="CLAUSE", shell_complete=clause_ids)
@click.option("--framework", required=True, metavar="NAME", shell_complete=names, help="Built-in adapter.")
def issue(identifier: str, framework: str) -> int:
    """Print a Markdown issue about the known failure of FRAMEWORK in CLAUSE: a reproducer that imports only the
    framework, and its output if the framework is installed; what the clause requires, and why; the difference from the
    float64 reference; versions and environment of the newest run, or of the baseline.

    \b
    conformance issue scaling.stays-positive --framework torch
    """
    clause, known = clause_of(identifier), load_known_failures(framework)
    findings = {entry.finding.id: entry.finding for entry in known.expectations if entry.clause == identifier}
    if not findings:
        failing = sorted({entry.clause for entry in known.expectations})
        some = f"it has some in: {', '.join(failing)}" if failing else "it has no known failure in any clause"
        raise click.UsageError(f"no known failure of {framework} in {identifier}; {some}")
    evidence = []
    for finding in findings.values():
        entries = tuple(entry for entry in known.expectations if entry.finding == finding)
        evidence.append(Evidence(finding, entries, run_program(finding)))
    click.echo(draft(clause, evidence, _find_record(framework, identifier)), nl=False)
    return 0


def _find_record(framework: str, clause: str) -> Record | None:
    """Return a record with a known failure of the clause, from the last run of each series or else its baseline.

    A draft needs no record, so one that cannot be read is named on standard error and left out.
    """
    by_series: dict[tuple[str, str], Record] = {}
    for path in (*list_records(BASELINES), *list_records(LAST_RUNS)):
        if path.name.startswith(f"{framework}-"):
            try:
                record = load(path)
            except RecordError as error:
                click.echo(f"conformance: {error}", err=True)
            else:
                by_series[record.series.device_kind, record.series.mode] = record
    for record in by_series.values():
        if any(verdict.clause == clause and verdict.outcome is Outcome.KNOWN for verdict in record.verdicts):
            return record
    return None


@dataclass(frozen=True)
class Evidence:
    """A finding, the entries that name it, and the report of its program, or one sentence why there is no report."""

    finding: Finding
    entries: tuple[Expectation, ...]
    result: ProgramResult | str


def draft(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> str:
    """Return an issue in Markdown about a framework's failure of a clause, which `record` has, if there is one."""
    return "\n".join(_sections(clause, evidence, record)).rstrip() + "\n"


def _sections(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> Iterator[str]:
    for item in evidence:
        text = item.finding.text
        yield from (f"# {text.reason}", "", f"Class: {text.kind}. Consequence: {text.consequence}.", "")
        if is_url(text.link):
            yield from (f"See also: {text.link} ({text.link_shows})", "")
        elif text.link == NO_LINK:
            yield from ("No earlier report of this was found.", "")
        yield from _program_section(item)
        yield from clause_section(clause)
        verdicts = record.verdicts if record else ()
        cause = clause.id, item.finding.id
        yield from checks_section([one for one in verdicts if (one.clause, one.finding) == cause])
    yield from _environment_section(evidence, record)


def _program_section(evidence: Evidence) -> Iterator[str]:
    yield from ("## To reproduce", "")
    if evidence.finding.program is None:
        yield from ("There is no program for this finding.", "")
        return
    yield from ("```python", evidence.finding.program.read_text("utf-8").rstrip(), "```", "")
    if isinstance(evidence.result, str):
        yield from (f"Not run just now: {evidence.result}", "")
        return
    state = "shows the failure" if evidence.result.present else "does not show the failure"
    yield from (f"Run just now with the versions below, it {state}:", "")
    yield from ("```text", f"expected: {evidence.result.expected}", f"seen: {evidence.result.observed}", "```", "")


def clause_section(clause: Clause) -> Iterator[str]:
    """Yield the lines of a section with the clause's requirement, observation and source."""
    yield from ("## What is asked", "", f"`{clause.id}` ({clause.level}): {clause.requirement}", "")
    yield from (f"Observed by: {clause.observed_by}", "", f"Source: {clause.source}", "")


def checks_section(verdicts: Sequence[TestVerdict]) -> Iterator[str]:
    """Yield the lines of a section with a table of the verdicts' failed checks; nothing if there are none."""
    failed = [(verdict, check) for verdict in verdicts for check in verdict.checks if not check.passed]
    if not failed:
        return
    yield from ("## What was measured", "", "Against a float64 reference that runs the same recipe.", "")
    yield from ("| case | what | seen | to be expected |", "|---|---|---|---|")
    for verdict, check in failed:
        values = (value if isinstance(value, str) else to_line(value) for value in (check.measured, check.expected))
        cells = (cell.replace("|", r"\|") for cell in (verdict.case, check.what, *values))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _environment_section(evidence: Sequence[Evidence], record: Record | None) -> Iterator[str]:
    yield from ("## Versions and environment", "")
    if record is None:
        yield f"No run is on record. Python {platform.python_version()}, {platform.platform()}."
        return
    framework = record.series.framework
    versions = sorted({entry.versions for item in evidence for entry in item.entries})
    yield f"- {framework} {record.variant.framework_version}, {record.series.mode}, {record.series.device_kind}"
    yield f"- known in {framework} {', '.join(versions)}"
    yield from (f"- {name}: {value}" for name, value in sorted(record.variant.environment.items()) if value)
