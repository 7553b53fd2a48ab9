"""Commands that look up what is judged: `conformance spec` and `conformance ways`."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.cli.options import completing, put_entries
from conformance.known_failures.reading import load_known
from conformance.spec.clauses import Clause, Level, load_clauses
from conformance.test_ids.inventory import inventory
from frameworks.adapter_file import folder_of
from frameworks.registry import built_in, known, path_of
from frameworks.ways import declared
from results.record.files import RecordError
from results.record.folders import LAST_RUNS, SHIPPED, listed
from results.record.reading import Record, load

BASELINES = SHIPPED / "baselines"

WAYS_HEADER = ("way", "calls", "documented limits")

clause_ids = completing(load_clauses)
"""Completes the id of a clause."""


def clause_of(identifier: str) -> Clause:
    """The clause of this id.

    Raises:
        click.UsageError: there is none; the message suggests similar ones.
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
    return _listed(c for c in clauses if family in (None, c.family) and level in (None, c.level.value))


@spec.command(short_help="Find clauses by words.")
@click.argument("words", nargs=-1, required=True)
def search(words: tuple[str, ...]) -> int:
    """List clauses whose text, source or history contains all WORDS (case-insensitive)."""
    return _listed(c for c in load_clauses().values() if all(word.lower() in _text(c) for word in words))


def _text(clause: Clause) -> str:
    bugs = " ".join(f"{incident.url} {incident.what}" for incident in clause.history)
    return f"{clause.id} {clause.requirement} {clause.observed_by} {clause.source} {bugs}".lower()


def _listed(clauses: Iterable[Clause]) -> int:
    rows = [(clause.id, clause.level.value, clause.requirement) for clause in clauses]
    if not rows:
        click.echo("conformance: no clause matches; `conformance spec list` lists all of them", err=True)
        return 2
    console = Console()
    if not console.is_terminal:
        put_entries(rows)
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for _ in ("id", "level"):
        table.add_column(no_wrap=True)
    for name, level, requirement in rows:
        table.add_row(Text(name, style="bold"), level, Text(requirement))
    console.print(table)
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
    for function, code in inventory().items():
        if code.clause == identifier:
            _line(console, f"  conformance/suites/{code.file}::{function}")
    _line(console, "\nKnown failures:", "bold")
    lines = list(_failures(identifier))
    for line in lines:
        _line(console, f"  {line}")
    if not lines:
        _line(console, "  none")
    return 0


def _failures(clause: str) -> Iterator[str]:
    """A line for each finding by which a framework is known to fail the clause, with the modes and the cause."""
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


def newest(framework: str = "") -> list[Record]:
    """One record of every series, of one framework or of all: the last run in this checkout, or else the baseline."""
    by_series: dict[tuple[str, str, str], Record] = {}
    for path in (*listed(BASELINES), *listed(LAST_RUNS)):
        if framework and not path.name.startswith(f"{framework}-"):
            continue
        try:
            record = load(path)
        except RecordError as error:
            click.echo(str(error), err=True)
            continue
        by_series[record.series.framework, record.series.device_kind, record.series.mode] = record
    return list(by_series.values())


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
    console = Console()
    for name in frameworks:
        path = path_of(name)
        if name not in built_in() and folder_of(path) is None:
            module = path.partition(":")[0]
            raise click.UsageError(f"no module {module} can be imported from here; want package.module:Class")
    for name in frameworks or sorted(known()):
        lines = ways_rows(name)
        if lines and not console.is_terminal:
            put_entries((name, *line) for line in lines)
        elif lines:
            table = Table(box=SIMPLE_HEAD, title=name)
            for heading in WAYS_HEADER:
                table.add_column(heading, overflow="fold")
            table.columns[0].no_wrap = True
            for line in lines:
                table.add_row(*line)
            console.print(table)
        elif frameworks:
            click.echo(f"{name}: its adapter declares no ways")
    return 0


def ways_rows(framework: str) -> list[tuple[str, str, str]]:
    """A row for each way of an adapter.

    Raises:
        UnknownFramework: there is no such adapter, or its file cannot be read.
    """
    return [
        (str(way), "; ".join(_call(name, given) for name, given in way.calls.items()), way.limits)
        for way in declared(framework)
    ]


def _call(name: str, given: Mapping[str, object]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name
