"""`conformance spec` and `conformance frameworks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.cli.options import completing, put_entries, watched
from conformance.known_failures.reading import load_known
from conformance.spec.clauses import Clause, Level, load_clauses
from conformance.spec.findings import ANY
from conformance.test_ids.inventory import inventory
from frameworks.registry import DEVICE_HELP, clashes, known, path_of
from results.record.files import RecordError, one_line
from results.record.folders import LAST_RUNS, SHIPPED, listed
from results.record.reading import Record, load
from results.record.values import Json

if TYPE_CHECKING:
    from conformance.runner.adapter_info import AdapterInfo

BASELINES = SHIPPED / "baselines"

_CONFIRMED = ("autocast.request-is-honoured-or-refused", "composition.declarations-hold")


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
    modes: dict[tuple[str, str], set[str]] = {}
    findings = {}
    for entry in load_known().expectations:
        if entry.clause == clause:
            place = entry.framework, entry.finding.id
            modes.setdefault(place, set()).update(entry.mode.split(", "))
            findings[place] = entry.finding
    for place, finding in findings.items():
        where = "all modes" if ANY in modes[place] else ", ".join(sorted(modes[place]))
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
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--device", default="auto", show_default=True, help=DEVICE_HELP)
def frameworks(names: tuple[str, ...], device: str) -> int:
    """List adapters, built in or installed: version, device, modes, declared and confirmed capabilities.

    With NAMEs, also list the reasons for unsupported capabilities.
    """
    from conformance.runner.adapter_info import AdapterInfo, ask
    from frameworks.contract import NOT_OFFERED

    for name in names:
        path_of(name)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("adapter", "version", "device", "modes", "declares", "confirmed by a run"):
        table.add_column(heading)
    asked = {name: ask(name, device) for name in watched(names or sorted(known()), "asking the adapters")}
    answers = [answer for answer in asked.values() if isinstance(answer, AdapterInfo)]
    records = newest()
    for declared in answers:
        table.add_row(*_row(declared, records))
    console = Console()
    if answers:
        console.print(table)
    for declared in answers if names else ():
        for capability, reason in declared.refused.items():
            offered = reason != NOT_OFFERED.reason
            does = f"refuses {capability}: {one_line(reason)}" if offered else f"does not offer {capability}"
            _line(console, f"{declared.name} {does}")
    for name, answer in asked.items():
        if isinstance(answer, str):
            _line(console, f"{name}: {one_line(answer)}")
    for line in clashes():
        _line(console, one_line(line))
    return 2 if names and len(answers) < len(names) else 0


def _row(declared: AdapterInfo, records: Iterable[Record]) -> tuple[str, ...]:
    answers: list[Json] = [
        one.value
        for record in records
        if (record.series.framework, record.variant.framework_version) == (declared.name, declared.version)
        and record.series.mode == declared.modes[0]
        for one in record.observations
        if one.clause in _CONFIRMED
    ]
    observable = [a for a in answers if isinstance(a, dict) and a.get("observed") is not None]
    agreed = sum(1 for answer in observable if answer["observed"] == answer["declared"])
    asked = len(declared.supported) + len(declared.refused)
    confirmed = f"{agreed} of {len(observable)} observable" if observable else "no record of this version"
    return (
        declared.name,
        declared.version,
        declared.device,
        ", ".join(declared.modes),
        f"{len(declared.supported)} of {asked}",
        confirmed,
    )
