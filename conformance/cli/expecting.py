"""`conformance expectations`: what an adapter is known not to do, confirmed by records of a version."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from conformance.expectations.confirming import Confirmed, ConfirmError, told
from conformance.expectations.confirming import confirm as confirmed_by
from conformance.expectations.entries import FILE, read_known
from frameworks.registry import built_in, path_of
from results.record.files import RecordError, one_line, replace
from results.record.reading import TestVerdict, load

_SHOWN = 20


@click.group()
def expectations() -> None:
    """The known failures of an adapter, and the versions in which somebody has judged it."""


@expectations.command(short_help="Make what records of a version show the known failures of that version.")
@click.argument("records", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RECORD...")
def confirm(records: tuple[Path, ...]) -> int:
    """Adds the version of RECORD, a whole run, to the judged ones of its adapter, and writes the versions of each
    expectation anew, so that it holds in this version exactly where the record shows the failure. Of an adapter with
    several modes all records are named. Comments and layout stay.

    \b
    conformance expectations confirm results/records/torch-2.16.0+cpu-cpu-eager.json

    Exit status: 0, every failure is known; 1, some need a finding and an expectation first, which are listed; 2, the
    file was left as it is, and one line says why.
    """
    loaded = [load(path) for path in records]
    path = _file(loaded[0].series.framework)
    name = f"{path.parent.name}/{FILE}"
    try:
        known = read_known(path.parent, loaded[0].series.framework)
        if not known.expectations:
            raise RecordError(name, "has no expectations to confirm", "write them first")
        former = path.read_bytes()
        outcome = confirmed_by(loaded, known, former.decode())
    except ConfirmError as error:
        raise RecordError(name, error.problem, error.remedy) from None
    except ValueError as error:
        raise RecordError(name, str(error), "correct it first") from None
    if outcome.text.encode() != former:
        replace(path, outcome.text.encode())
    _tell(outcome, name, changed=outcome.text.encode() != former)
    return 1 if outcome.unnamed else 0


def _file(framework: str) -> Path:
    module = path_of(framework).partition(":")[0]
    spec = find_spec(module)
    path = Path(spec.origin).parent / FILE if spec is not None and spec.origin is not None else Path(FILE)
    if not path.is_file():
        raise RecordError(path, f"is not there, so that {framework} has nothing to confirm", "write it first")
    return path


def _tell(outcome: Confirmed, name: str, *, changed: bool) -> None:
    if not changed:
        click.echo(f"{name} says of {outcome.version} what the record shows; nothing was changed")
    else:
        click.echo(f"{name}: {outcome.version} is judged, {len(outcome.changes)} expectations have other versions")
    for line in told(outcome.changes):
        click.echo(f"  {line}")
    if outcome.taken:
        clauses = len(set(outcome.taken))
        click.echo(f"{len(outcome.taken)} expectations of other devices or modes, of {clauses} clauses, are taken over")
    _list(outcome.unnamed)
    if changed and _is_ours(name):
        click.echo("`conformance self pages` makes the pages that show it")


def _list(unnamed: Sequence[TestVerdict]) -> None:
    if unnamed:
        click.echo(f"{len(unnamed)} failures need a finding and an expectation first:")
    for verdict in unnamed[:_SHOWN]:
        click.echo(one_line(f"  {verdict.clause} {verdict.case} {verdict.outcome.value} ({verdict.signature})"))
    if unnamed[_SHOWN:]:
        click.echo(f"  and {len(unnamed) - _SHOWN} more")


def _is_ours(name: str) -> bool:
    return name.partition("/")[0] in built_in()
