"""Commands that look up what is judged and what is known to fail: `spec`, `ways`, `findings` and `issue`."""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click
from rich.console import Console
from rich.text import Text

from conformance.checks import reproducers
from conformance.checks.reproducers import ProgramResult
from conformance.cli.options import completing, names, put_entries, put_table, show_progress
from conformance.known_failures.reading import Expectation, Known, load_known
from conformance.runner.machine import devices, instruction_sets
from conformance.spec.clauses import Clause, Level, load_clauses
from conformance.spec.findings import NO_LINK, Finding
from conformance.test_ids.inventory import ROOT, read_inventory
from frameworks.installer.install import installed_version
from frameworks.registry import built_in, find_adapters, folder_of, path_of
from frameworks.ways import load_ways
from results.record.folders import LAST_RUNS, SHIPPED, list_records
from results.record.model import Outcome
from results.record.reading import Record, TestVerdict, load
from results.record.values import FindingKind, to_line
from results.show.clauses import is_url, number
from results.show.findings import HEADINGS

BASELINES = SHIPPED / "baselines"

WAYS_HEADER = ("way", "calls", "documented limits")

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
    return _print_clauses(c for c in clauses if family in (None, c.family) and level in (None, c.level.value))


@spec.command(short_help="Find clauses by words.")
@click.argument("terms", nargs=-1, required=True, metavar="WORDS...")
def search(terms: tuple[str, ...]) -> int:
    """List clauses whose text, source or history contains all WORDS (case-insensitive)."""
    return _print_clauses(c for c in load_clauses().values() if all(term.lower() in _text(c) for term in terms))


def _text(clause: Clause) -> str:
    bugs = " ".join(f"{incident.url} {incident.what}" for incident in clause.history)
    return f"{clause.id} {clause.requirement} {clause.observed_by} {clause.source} {bugs}".lower()


def _print_clauses(clauses: Iterable[Clause]) -> int:
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
    _line(console, f"{clause.id}  {clause.level.value}  revision {clause.revision}", "bold")
    console.print(Text(clause.requirement))
    console.print(Text(f"\nSeen by: {clause.observed_by}"))
    _line(console, f"Source: {clause.source}")
    if clause.history:
        _line(console, "\nBroken before:", "bold")
    for incident in clause.history:
        _line(console, f"  {incident.what}\n    {incident.url}")
    _line(console, "\nTests:", "bold")
    for function, code in read_inventory(ROOT, identifier).items():
        _line(console, f"  conformance/suites/{code.file}::{function}")
    _line(console, "\nKnown failures:", "bold")
    lines = list(_failures(identifier))
    for line in lines:
        _line(console, f"  {line}")
    if not lines:
        _line(console, "  none")
    return 0


def _failures(clause: str) -> Iterator[str]:
    """Yield a line for each finding by which a framework is known to fail the clause, with modes and cause."""
    known = load_known()
    failures = [entry for entry in known.expectations if entry.clause == clause]
    for finding in known.findings:
        modes = {entry.series.mode for entry in failures if entry.finding is finding}
        if not modes:
            continue
        every = {series.mode for series in known.judged[finding.framework]}
        where = "all modes" if modes == every else ", ".join(sorted(modes))
        text = finding.text
        yield f"{finding.framework} ({where}) · {text.kind}, {text.consequence} · {finding.id}"
        yield f"  {text.reason}"


def _line(console: Console, text: str, style: str = "") -> None:
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
        lines = ways_rows(name)
        if lines:
            put_table(("framework", *WAYS_HEADER), [(name, *line) for line in lines])
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0


def ways_rows(framework: str) -> list[tuple[str, str, str]]:
    """Return a row for each way of an adapter.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return [
        (str(way), "; ".join(_call(name, arguments) for name, arguments in way.calls.items()), way.limits)
        for way in load_ways(framework)
    ]


def _call(name: str, arguments: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name


@dataclass(frozen=True)
class Evidence:
    """A finding with its expectations and the result of its program.

    Attributes:
        entries: the expectations that name the finding.
        result: the report of its program, or one sentence why the program was not run.
    """

    finding: Finding
    entries: tuple[Expectation, ...]
    result: ProgramResult | str


def report(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> str:
    """Return the report of a framework's failure of a clause; `record` is the framework's newest run, or None."""
    return "\n".join(_lines(clause, evidence, record)).rstrip() + "\n"


def _lines(clause: Clause, evidence: Sequence[Evidence], record: Record | None) -> Iterator[str]:
    for item in evidence:
        text = item.finding.text
        yield from (f"# {text.reason}", "", f"Class: {text.kind}. Consequence: {text.consequence}.", "")
        if is_url(text.link):
            yield from (f"See also: {text.link} ({text.link_shows})", "")
        elif text.link == NO_LINK:
            yield from ("No earlier report of this was found.", "")
        yield from _program(item)
        yield from clause_lines(clause)
        verdicts = record.verdicts if record else ()
        yield from failed_checks([v for v in verdicts if (v.clause, v.finding) == (clause.id, item.finding.id)])
    yield from _environment(evidence, record)


def _program(evidence: Evidence) -> Iterator[str]:
    if evidence.finding.program is None:
        yield from ("## To reproduce", "", "There is no program for this finding.", "")
        return
    yield from ("## To reproduce", "", "```python", evidence.finding.program.read_text("utf-8").rstrip(), "```", "")
    if isinstance(evidence.result, ProgramResult):
        state = "shows the failure" if evidence.result.present else "does not show the failure"
        yield from (f"Run just now with the versions below, it {state}:", "")
        yield from ("```text", f"expected: {evidence.result.expected}", f"seen: {evidence.result.observed}", "```", "")
    else:
        yield from (f"Not run just now: {evidence.result}", "")


def clause_lines(clause: Clause) -> Iterator[str]:
    """Yield a section with the clause's requirement, source and history."""
    yield from ("## What is asked", "", f"`{clause.id}` ({clause.level}): {clause.requirement}", "")
    yield from (f"Observed by: {clause.observed_by}", "", f"Source: {clause.source}", "")


def failed_checks(verdicts: Sequence[TestVerdict]) -> Iterator[str]:
    """Yield the failed checks of verdicts as a section with a table; nothing if there are none."""
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
    versions = sorted({entry.versions for item in evidence for entry in item.entries})
    yield f"- {framework} {record.variant.framework_version}, {record.series.mode}, {record.series.device_kind}"
    yield f"- known in {framework} {', '.join(versions)}"
    yield from (f"- {name}: {value}" for name, value in sorted(record.variant.environment.items()) if value)


def _load_known(framework: str) -> Known:
    if framework not in built_in():
        raise click.BadParameter(f"no built-in adapter {framework!r}: one of {', '.join(built_in())}")
    try:
        return load_known([framework])
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("framework", shell_complete=names)
@click.argument("terms", nargs=-1, metavar="[WORD]...")
@click.option("--clause", metavar="ID", shell_complete=clause_ids, help="Only those by which this clause fails.")
@click.option(
    "--class", "kind", type=click.Choice([kind.value for kind in FindingKind]), help="Only those of this class."
)
@click.option("--run", "tried", is_flag=True, help="Run the reproducers with the installed framework.")
def findings(framework: str, terms: tuple[str, ...], clause: str | None, kind: str | None, tried: bool) -> int:
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
    known = _load_known(framework)
    if not known.findings:
        click.echo(f"{framework} has no findings")
        return 0
    if clause is not None:
        clause_of(clause)
    clauses: dict[str, set[str]] = {}
    for entry in known.expectations:
        clauses.setdefault(entry.finding.id, set()).add(entry.clause)
    entries = {finding.id: _entry(finding, sorted(clauses.get(finding.id, ()))) for finding in known.findings}
    ranked = sorted(known.findings, key=lambda finding: (finding.text.kind, finding.text.consequence.rank, finding.id))
    by_rank = [
        finding
        for finding in ranked
        if clause in (None, *clauses.get(finding.id, ())) and kind in (None, finding.text.kind)
        if all(term.lower() in " ".join(entries[finding.id]).lower() for term in terms)
    ]
    if not by_rank:
        click.echo(f"conformance: no finding matches; `conformance findings {framework}` lists all of them", err=True)
        return 2
    here = devices(), instruction_sets()
    reasons = {finding.id: finding.not_here(*here) for finding in by_rank if tried}
    due = [finding for finding in by_rank if tried and finding.program and not reasons[finding.id]]
    results = {finding.id: _run_program(finding) for finding in show_progress(due, "running the programs")}
    tries = {name: f"not tried: {reason}" for name, reason in reasons.items() if reason}
    tries |= {name: _result_line(result) for name, result in results.items()}
    console = Console()
    if console.is_terminal:
        for finding in by_rank:
            heading, *lines = _finding_lines(entries[finding.id], tries.get(finding.id, ""))
            console.print(Text(heading, style="bold"), soft_wrap=True)
            console.print(Text("\n".join(f"  {line}" for line in lines)), soft_wrap=True)
    else:
        put_entries((*entries[finding.id], *([tries.get(finding.id, "")] if tried else [])) for finding in by_rank)
    click.echo(number(len(by_rank), "finding"), err=True)
    if any(isinstance(result, str) for result in results.values()):
        return 2
    version = installed_version(framework) or ""
    there = {finding.id: known.is_expected(finding, version) for finding in due}
    shown = {name: one.present for name, one in results.items() if not isinstance(one, str)}
    return int(shown != there)


def _entry(finding: Finding, clauses: Sequence[str]) -> tuple[str, ...]:
    text = finding.text
    return text.kind, text.consequence, finding.id, text.reason, ", ".join(clauses), text.link


def _finding_lines(entry: tuple[str, ...], tried: str) -> Iterator[str]:
    kind, consequence, name, reason, clauses, link = entry
    yield f"{HEADINGS[FindingKind(kind)]} · {consequence} · {name}"
    yield from filter(None, (reason, clauses, link if is_url(link) else "", tried))


def _result_line(result: reproducers.ProgramResult | str) -> str:
    if isinstance(result, str):
        return result
    return f"{'present' if result.present else 'gone'}: got {result.observed}, want {result.expected}"


def _run_program(finding: Finding) -> reproducers.ProgramResult | str:
    if finding.program is None:
        return "no reproducer"
    try:
        return reproducers.run(finding.program)
    except reproducers.ProgramError as error:
        return str(error)


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
    clause, known = clause_of(identifier), _load_known(framework)
    entries = [entry for entry in known.expectations if entry.clause == identifier]
    if not entries:
        failing = sorted({entry.clause for entry in known.expectations})
        some = f"it has some in: {', '.join(failing)}" if failing else "it has no known failure in any clause"
        raise click.UsageError(f"no known failure of {framework} in {identifier}; {some}")
    concerned = {entry.finding.id: entry.finding for entry in entries}
    evidence = [
        Evidence(
            finding, tuple(entry for entry in known.expectations if entry.finding == finding), _run_program(finding)
        )
        for finding in concerned.values()
    ]
    click.echo(report(clause, evidence, _find_record(framework, identifier)), nl=False)
    return 0


def _find_record(framework: str, clause: str) -> Record | None:
    """Return a record with a known failure of the clause, from the last run of each series or else its baseline.

    Raises:
        RecordError: a record cannot be read.
    """
    by_series: dict[tuple[str, str], Record] = {}
    for path in (*list_records(BASELINES), *list_records(LAST_RUNS)):
        if path.name.startswith(f"{framework}-"):
            record = load(path)
            by_series[record.series.device_kind, record.series.mode] = record
    for record in by_series.values():
        if any(verdict.clause == clause and verdict.outcome is Outcome.KNOWN for verdict in record.verdicts):
            return record
    return None
