"""The result of a bisection: a summary for the terminal, and the draft of an upstream issue as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.cli.upstream_issue import clause_lines, failed_checks
from conformance.spec.clauses import Clause
from conformance.sweep.bisection import FAILED, Boundary, CellVerdicts, Crossing
from conformance.sweep.plan import SweepCell
from frameworks.installer.distributions import package_of, variable_of
from results.record.files import one_line
from results.record.reading import TestVerdict

MOST = 12
"""Tests and packages that the summary lists."""


@dataclass(frozen=True)
class Bisection:
    """A bisection and its result.

    Attributes:
        cells: all releases, oldest first.
        good, bad: the two next to the boundary.
        tests: that pass at the good end and fail at the bad one.
        fix: whether the good end is the newer one.
        repeat: the command.
    """

    clause: Clause
    cells: Sequence[SweepCell]
    boundary: Boundary
    good: CellVerdicts
    bad: CellVerdicts
    tests: Sequence[str]
    crossing: Crossing
    fix: bool
    repeat: str

    @property
    def package(self) -> str:
        """The package that varies."""
        return self.bad.cell.package

    @property
    def failures(self) -> list[TestVerdict]:
        """Verdicts of the bad release that fail and belong to the tests."""
        return [v for test, v in self.bad.verdicts.items() if test in self.tests and v.outcome in FAILED]


def summary(bisection: Bisection) -> Iterator[str]:
    """Lines for the terminal."""
    good, bad = bisection.good.cell, bisection.bad.cell
    older, newer = ("last bad  ", "first good") if bisection.fix else ("last good ", "first bad ")
    first, second = (bad, good) if bisection.fix else (good, bad)
    yield f"{older} {bisection.package} {first.version}{_day(first)}"
    yield f"{newer} {bisection.package} {second.version}{_day(second)}"
    if between := bisection.boundary.between:
        named = [f"{bisection.cells[index].version} ({reason})" for index, reason in between.items()]
        yield one_line(f"or one of {', '.join(named[:MOST])}, which cannot be judged", 2000)
    yield ""
    for verdict in bisection.failures[:MOST]:
        before = bisection.good.verdicts.get(verdict.test)
        outcome = "missing" if before is None else str(before.outcome)
        yield one_line(f"{verdict.test}: {outcome} -> {verdict.outcome} [{verdict.signature}] {verdict.message}")
    if len(bisection.failures) > MOST:
        yield f"and {len(bisection.failures) - MOST} more tests"
    yield ""
    yield from _crossed(bisection)
    if bisection.failures:
        yield f"repeat:  {install_words(bad)} && {bisection.failures[0].repro}"
    yield f"compare: conformance compare {bisection.good.file} {bisection.bad.file}"


def _day(cell: SweepCell) -> str:
    return f" of {cell.released}" if cell.released else ""


def _crossed(bisection: Bisection) -> Iterator[str]:
    crossing = bisection.crossing
    for name, (before, after) in [*crossing.differences.items()][:MOST]:
        yield f"  {name}: {before or 'missing'} in the good environment, {after or 'missing'} in the bad one"
    if len(crossing.differences) > MOST:
        yield f"  and {len(crossing.differences) - MOST} more packages"
    for cell in crossing.cells:
        yield one_line(f"  {cell.name}: {cell.side or f'not judged ({cell.reason})'}")
    yield f"guilty: {crossing.guilty or 'not one package alone'}; {crossing.why}"
    yield ""


def install_words(cell: SweepCell) -> str:
    """The command that installs a cell's versions."""
    versions = {f"{cell.framework.upper()}_VERSION": cell.framework_version}
    versions |= {variable_of(name): version for name, version in cell.packages.items()}
    words = [f"{name}={version}" for name, version in versions.items() if version]
    return " ".join([*words, "python -m conformance install", cell.framework])


def draft(bisection: Bisection) -> str:
    """A report for the tracker of the guilty package."""
    return "\n".join(_draft(bisection)).rstrip() + "\n"


def _draft(bisection: Bisection) -> Iterator[str]:
    good, bad = bisection.good.cell, bisection.bad.cell
    guilty = bisection.crossing.guilty or bisection.package
    what = f"works since {good.version}" if bisection.fix else f"fails since {bad.version}"
    subject = (
        f"{bisection.package} {what}" if guilty == bisection.package else f"{guilty} with {bisection.package}: {what}"
    )
    yield from (f"# {subject}: {_sentence(bisection.clause.requirement)}", "")
    yield f"- good: {bisection.package} {good.version}{_day(good)}"
    yield f"- bad: {bisection.package} {bad.version}{_day(bad)}"
    for index, reason in bisection.boundary.between.items():
        yield one_line(f"- {bisection.cells[index].version} cannot be judged: {reason}")
    yield f"- guilty: {bisection.crossing.guilty or 'not one package alone'} ({bisection.crossing.why})"
    yield from (one_line(f"- {cell.name}: {cell.side or 'not judged'}") for cell in bisection.crossing.cells)
    yield from ("", "## To reproduce", "", "```sh", f"{install_words(bad)}")
    yield from (f"{verdict.repro}" for verdict in bisection.failures[:1])
    yield from ("```", "", f"Found by `{bisection.repeat}`.", "")
    yield from clause_lines(bisection.clause)
    yield from failed_checks(bisection.failures)
    yield from _messages(bisection.failures)
    yield from _environment(bisection)


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _messages(failures: Sequence[TestVerdict]) -> Iterator[str]:
    unchecked = [verdict for verdict in failures if all(check.passed for check in verdict.checks)]
    if unchecked:
        yield from ("## Messages", "")
        yield from (one_line(f"- `{verdict.test}`: {verdict.message}") for verdict in unchecked[:MOST])
        yield ""


def _environment(bisection: Bisection) -> Iterator[str]:
    yield from ("## Versions", "", "| package | good | bad |", "|---|---|---|")
    packages = bisection.crossing.differences
    own = package_of(bisection.bad.cell.framework)
    if own and own not in packages:
        yield f"| {own} | {bisection.good.cell.framework_version} | {bisection.bad.cell.framework_version} |"
    yield from (f"| {name} | {before or '-'} | {after or '-'} |" for name, (before, after) in packages.items())
    if bisection.bad.record is not None:
        series, environment = bisection.bad.record.series, bisection.bad.record.variant.environment
        yield from ("", f"Python {environment.get('python', '')}, {series.device_kind}, mode {series.mode}.")
