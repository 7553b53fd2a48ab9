"""`conformance findings` and `conformance issue`: list known defects; draft an upstream issue."""

from collections.abc import Iterator, Sequence

import click
from rich.console import Console
from rich.text import Text

from conformance.checks import reproducers
from conformance.cli import upstream_issue
from conformance.cli.options import names, put_entries, watched
from conformance.cli.specifying import clause_ids, clause_of, newest
from conformance.cli.upstream_issue import Evidence
from conformance.known_failures.reading import Known, load_known
from conformance.runner.machine import devices, instruction_sets
from conformance.spec.findings import Finding
from frameworks.installer.install import installed_version
from frameworks.registry import built_in
from results.record.reading import Record
from results.record.texts import FindingKind
from results.show.clauses import number
from results.show.findings import HEADINGS
from results.show.marks import is_url


def _known(framework: str) -> Known:
    if framework not in built_in():
        raise click.BadParameter(f"no built-in adapter {framework!r}: one of {', '.join(built_in())}")
    try:
        return load_known([framework])
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("framework", shell_complete=names)
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--clause", metavar="ID", shell_complete=clause_ids, help="Only those by which this clause fails.")
@click.option(
    "--class", "kind", type=click.Choice([kind.value for kind in FindingKind]), help="Only those of this class."
)
@click.option("--run", "tried", is_flag=True, help="Run the reproducers with the installed framework.")
def findings(framework: str, words: tuple[str, ...], clause: str | None, kind: str | None, tried: bool) -> int:
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
    known = _known(framework)
    if not known.findings:
        click.echo(f"{framework} has no findings")
        return 0
    if clause is not None:
        clause_of(clause)
    clauses: dict[str, set[str]] = {}
    for entry in known.expectations:
        clauses.setdefault(entry.finding.id, set()).add(entry.clause)
    entries = {each.id: _entry(each, sorted(clauses.get(each.id, ()))) for each in known.findings}
    by_rank = [
        each
        for each in sorted(known.findings, key=lambda each: (each.text.kind, each.text.consequence.rank, each.id))
        if clause in (None, *clauses.get(each.id, ())) and kind in (None, each.text.kind)
        if all(word.lower() in " ".join(entries[each.id]).lower() for word in words)
    ]
    if not by_rank:
        click.echo(f"conformance: no finding matches; `conformance findings {framework}` lists all of them", err=True)
        return 2
    here = devices(), instruction_sets()
    reasons = {each.id: each.not_here(*here) for each in by_rank if tried}
    due = [each for each in by_rank if tried and each.program and not reasons[each.id]]
    results = {each.id: _run_program(each) for each in watched(due, "running the programs")}
    tries = {name: f"not tried: {reason}" for name, reason in reasons.items() if reason}
    tries |= {name: _result_line(result) for name, result in results.items()}
    console = Console()
    if console.is_terminal:
        for each in by_rank:
            heading, *lines = _lines(entries[each.id], tries.get(each.id, ""))
            console.print(Text(heading, style="bold"), soft_wrap=True)
            console.print(Text("\n".join(f"  {line}" for line in lines)), soft_wrap=True)
    else:
        put_entries((*entries[each.id], *([tries.get(each.id, "")] if tried else [])) for each in by_rank)
    click.echo(number(len(by_rank), "finding"), err=True)
    if any(isinstance(result, str) for result in results.values()):
        return 2
    version = installed_version(framework) or ""
    there = {each.id: known.expected(each, version) for each in due}
    shown = {name: one.there for name, one in results.items() if not isinstance(one, str)}
    return int(shown != there)


def _entry(finding: Finding, clauses: Sequence[str]) -> tuple[str, ...]:
    text = finding.text
    return text.kind, text.consequence, finding.id, text.reason, ", ".join(clauses), text.link


def _lines(entry: tuple[str, ...], tried: str) -> Iterator[str]:
    kind, consequence, name, reason, clauses, link = entry
    yield f"{HEADINGS[FindingKind(kind)]} · {consequence} · {name}"
    yield from filter(None, (reason, clauses, link if is_url(link) else "", tried))


def _result_line(result: reproducers.ProgramResult | str) -> str:
    if isinstance(result, str):
        return result
    return f"{'present' if result.there else 'gone'}: got {result.observed}, want {result.expected}"


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
    clause, known = clause_of(identifier), _known(framework)
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
    click.echo(upstream_issue.report(clause, evidence, _record(framework, identifier)), nl=False)
    return 0


def _record(framework: str, clause: str) -> Record | None:
    """The newest record of the framework in which the clause fails."""
    return next((record for record in newest(framework) if upstream_issue.failing(record, clause)), None)
