"""Commands that look up what is judged and known to fail: `spec`, `ways`, `findings`, and drafts of issues."""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click
from rich.console import Console
from rich.text import Text

from conformance.checks.reproducers import ProgramError, ProgramResult
from conformance.checks.reproducers import run as run_reproducer
from conformance.cli.options import completing, names, put_entries, put_table, show_progress
from conformance.known_failures.entries import Expectation, Known
from conformance.known_failures.reading import load_known
from conformance.runner.machine import devices, instruction_sets
from conformance.spec.clauses import NO_LINK, Clause, Finding, Level, load_clauses
from conformance.test_ids import ROOT, read_inventory
from frameworks.installer.install import installed_version
from frameworks.registry import built_in, find_adapters, folder_of, path_of
from frameworks.ways import load_ways
from results.record.files import RecordError
from results.record.folders import LAST_RUNS, SHIPPED, list_records
from results.record.model import FindingKind, Outcome, to_line
from results.record.reading import Record, TestVerdict, load
from results.show.clauses import HEADINGS, is_url, number

WAYS_HEADER = ("way", "calls", "documented limits")
"""Names of the columns of `ways_rows`."""

clause_ids = completing(load_clauses)
"""Shell completion of a clause's id."""


def clause_of(identifier: str) -> Clause:
    """Return the clause with this id.

    Raises:
        click.UsageError: there is no such clause; the message suggests similar ones.
    """
    clauses = load_clauses()
    if identifier not in clauses:
        if identifier in {clause.family for clause in clauses.values()}:
            wanted = f"`conformance spec list --family {identifier}` lists those of the family"
        elif near := get_close_matches(identifier, clauses, 5, 0.5):
            wanted = f"similar: {', '.join(near)}"
        else:
            wanted = "`conformance spec list` lists all of them"
        raise click.UsageError(f"no clause {identifier!r}; {wanted}")
    return clauses[identifier]


@click.group()
def spec() -> None:
    """The specification, clause by clause.

    \b
    conformance spec list --family scaling --level MUST
    conformance spec search checkpoint
    conformance spec show scaling.automaton
    """


@spec.command(name="list", short_help="List clauses, by family or level.")
@click.option("--family", help="Only this family, such as scaling.")
@click.option(
    "--level", type=click.Choice([level.value for level in Level], case_sensitive=False), help="Only this level."
)
def list_clauses(family: str | None, level: str | None) -> int:
    """List clauses. Into a pipe: one line for each, with tabs between id, level and requirement."""
    clauses = load_clauses().values()
    families = sorted({clause.family for clause in clauses})
    if family is not None and family not in families:
        raise click.BadParameter(f"no family {family!r}: one of {', '.join(families)}", param_hint="--family")
    return _print_clauses(
        clause for clause in clauses if family in (None, clause.family) and level in (None, clause.level.value)
    )


@spec.command(short_help="Find clauses by words.")
@click.argument("terms", nargs=-1, required=True, metavar="WORDS...")
def search(terms: tuple[str, ...]) -> int:
    """List clauses whose text, source or history contains all WORDS (case-insensitive)."""
    lowered = [term.lower() for term in terms]
    return _print_clauses(
        clause for clause in load_clauses().values() if all(term in _searched_text(clause) for term in lowered)
    )


def _searched_text(clause: Clause) -> str:
    bugs = " ".join(f"{incident.url} {incident.what}" for incident in clause.history)
    return f"{clause.id} {clause.requirement} {clause.observed_by} {clause.source} {bugs}".lower()


def _print_clauses(clauses: Iterable[Clause]) -> int:
    """Print a row for each clause; return the exit status."""
    rows = [(clause.id, clause.level.value, clause.requirement) for clause in clauses]
    if not rows:
        click.echo("conformance: no clause matches; `conformance spec list` lists all of them", err=True)
        return 2
    put_table(("clause", "level", "requirement"), rows)
    return 0


@spec.command(short_help="Show a clause: source, bugs, tests, known failures.")
@click.argument("identifier", metavar="CLAUSE", shell_complete=clause_ids)
def show(identifier: str) -> int:
    """Show CLAUSE with its source, the bugs that broke it, its tests, and its known failures by framework.

    `conformance table --clauses results/baselines` has the results of all clauses.
    """
    clause = clause_of(identifier)
    console = Console()
    _print_line(console, f"{clause.id}  {clause.level.value}  revision {clause.revision}", "bold")
    console.print(Text(clause.requirement))
    console.print(Text(f"\nSeen by: {clause.observed_by}"))
    _print_line(console, f"Source: {clause.source}")
    if clause.history:
        _print_line(console, "\nBroken before:", "bold")
    for incident in clause.history:
        _print_line(console, f"  {incident.what}\n    {incident.url}")
    _print_line(console, "\nTests:", "bold")
    for function, code in read_inventory(ROOT, identifier).items():
        _print_line(console, f"  conformance/suites/{code.file}::{function}")
    _print_line(console, "\nKnown failures:", "bold")
    for line in [*_describe_failures(identifier)] or ["none"]:
        _print_line(console, f"  {line}")
    return 0


def _describe_failures(clause: str) -> Iterator[str]:
    """Yield a line for each finding by which a framework is known to fail the clause, with modes and cause."""
    known = load_known()
    failures = [entry for entry in known.expectations if entry.clause == clause]
    for finding in known.findings:
        modes = {entry.series.mode for entry in failures if entry.finding is finding}
        if not modes:
            continue
        judged_modes = {series.mode for series in known.judged[finding.framework]}
        where = "all modes" if modes == judged_modes else ", ".join(sorted(modes))
        text = finding.text
        yield f"{finding.framework} ({where}) · {text.kind}, {text.consequence} · {finding.id}"
        yield f"  {text.reason}"


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


@click.command()
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
def ways(frameworks: tuple[str, ...]) -> int:
    """List the public calls of each technique that FRAMEWORK (by default every adapter) can use instead of its default
    ones.

    \b
    conformance ways torch
    conformance run torch --ways clip.two-calls    the suites with one of them
    conformance run torch --ways all               with all of them, in as few runs as can be

    Into a pipe: one line for each, with tabs between framework, way, calls and documented limits.
    """
    for name in frameworks:
        path = path_of(name)
        if name not in built_in() and folder_of(path) is None:
            module = path.partition(":")[0]
            raise click.UsageError(f"no module {module} can be imported from here; want package.module:Class")
    for name in frameworks or sorted(find_adapters()):
        rows = ways_rows(name)
        if rows:
            put_table(("framework", *WAYS_HEADER), [(name, *row) for row in rows])
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0


def ways_rows(framework: str) -> list[tuple[str, str, str]]:
    """Return a row for each way of an adapter: its name, its public calls, and their documented limits.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return [
        (str(way), "; ".join(_call_text(name, arguments) for name, arguments in way.calls.items()), way.limits)
        for way in load_ways(framework)
    ]


def _call_text(name: str, arguments: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name


@click.command()
@click.argument("framework", shell_complete=names)
@click.argument("terms", nargs=-1, metavar="[WORD]...")
@click.option("--clause", metavar="ID", shell_complete=clause_ids, help="Only those by which this clause fails.")
@click.option(
    "--class", "kind", type=click.Choice([kind.value for kind in FindingKind]), help="Only those of this class."
)
@click.option("--run", "is_run", is_flag=True, help="Run the reproducers with the installed framework.")
def findings(framework: str, terms: tuple[str, ...], clause: str | None, kind: str | None, is_run: bool) -> int:
    """List the findings of FRAMEWORK, with WORDs those whose id, cause, clauses or link contain all of them, by class,
    the worst consequence first; with --run, run their reproducers.

    \b
    conformance findings torch
    conformance findings torch --class defect GradScaler
    conformance findings torch --clause scaling.stays-positive --run

    Into a pipe: one line for each, with tabs between class, consequence, id, cause, clauses and link, and the result of
    --run. Reproducers that need a missing module, or another processor or device, are skipped.

    Exit status with --run: 0, every reproducer agrees with its finding for the installed version; 1, one does not; 2,
    one cannot be run.
    """
    known = load_known_failures(framework)
    if not known.findings:
        click.echo(f"{framework} has no findings")
        return 0
    if clause is not None:
        clause_of(clause)
    rows = [row for row in _list_findings(known) if row.matches(terms, clause, kind)]
    if not rows:
        click.echo(f"conformance: no finding matches; `conformance findings {framework}` lists all of them", err=True)
        return 2
    if not is_run:
        _print_findings(rows)
        return 0
    due, reports = _split_by_machine([row.finding for row in rows])
    results = {finding.id: run_program(finding) for finding in show_progress(due, "running the programs")}
    _print_findings(rows, reports | {name: _describe_result(result) for name, result in results.items()})
    if any(isinstance(result, str) for result in results.values()):
        return 2
    version = installed_version(framework) or ""
    expected = {finding.id: known.is_expected(finding, version) for finding in due}
    present = {name: result.present for name, result in results.items() if isinstance(result, ProgramResult)}
    return int(present != expected)


def load_known_failures(framework: str) -> Known:
    """Return the known failures of a built-in adapter; refuse another name, and invalid files, by a ClickException."""
    if framework not in built_in():
        raise click.BadParameter(f"no built-in adapter {framework!r}: one of {', '.join(built_in())}")
    try:
        return load_known([framework])
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def run_program(finding: Finding) -> ProgramResult | str:
    """Run the reproducer of a finding; return its report, or one sentence why there is none."""
    if finding.program is None:
        return "no reproducer"
    try:
        return run_reproducer(finding.program)
    except ProgramError as error:
        return str(error)


@dataclass(frozen=True)
class _FindingRow:
    """A finding, and the clauses that it makes fail."""

    finding: Finding
    clauses: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Class, consequence, id, cause, clauses and link."""
        text = self.finding.text
        return text.kind, text.consequence, self.finding.id, text.reason, ", ".join(self.clauses), text.link

    def matches(self, terms: Sequence[str], clause: str | None, kind: str | None) -> bool:
        """Return whether the finding is of this clause and class, None for any, and its cells contain all terms."""
        searched = " ".join(self.cells).lower()
        is_chosen = clause in (None, *self.clauses) and kind in (None, self.finding.text.kind)
        return is_chosen and all(term.lower() in searched for term in terms)


def _list_findings(known: Known) -> Iterator[_FindingRow]:
    """Yield the findings by class, the worst consequence first."""
    clauses: dict[str, set[str]] = {}
    for entry in known.expectations:
        clauses.setdefault(entry.finding.id, set()).add(entry.clause)
    for finding in sorted(known.findings, key=lambda one: (one.text.kind, one.text.consequence.rank, one.id)):
        yield _FindingRow(finding, tuple(sorted(clauses.get(finding.id, ()))))


def _split_by_machine(findings: Sequence[Finding]) -> tuple[list[Finding], dict[str, str]]:
    """Return the findings whose reproducers can run here, and by id why another one's was not tried."""
    machine = devices(), instruction_sets()
    reasons = {finding.id: finding.not_here(*machine) for finding in findings}
    due = [finding for finding in findings if finding.program and not reasons[finding.id]]
    return due, {name: f"not tried: {reason}" for name, reason in reasons.items() if reason}


def _print_findings(rows: Sequence[_FindingRow], reports: Mapping[str, str] | None = None) -> None:
    """Print the findings, and their number on standard error; `reports` has the results of reproducers by id."""
    console = Console()
    if console.is_terminal:
        for row in rows:
            kind, consequence, name, reason, clauses, link = row.cells
            heading = f"{HEADINGS[FindingKind(kind)]} · {consequence} · {name}"
            lines = reason, clauses, link if is_url(link) else "", (reports or {}).get(name, "")
            console.print(Text(heading, style="bold"), soft_wrap=True)
            console.print(Text("\n".join(f"  {line}" for line in lines if line)), soft_wrap=True)
    elif reports is None:
        put_entries(row.cells for row in rows)
    else:
        put_entries((*row.cells, reports.get(row.finding.id, "")) for row in rows)
    click.echo(number(len(rows), "finding"), err=True)


def _describe_result(result: ProgramResult | str) -> str:
    if isinstance(result, str):
        return result
    return f"{'present' if result.present else 'gone'}: got {result.observed}, want {result.expected}"


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
