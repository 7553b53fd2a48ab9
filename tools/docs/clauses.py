"""The page of all clauses, and tables of ways and of drawn programs."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby

from conformance.cli.spec import WAYS_HEADER, ways_rows
from conformance.generative import coverage
from conformance.known_failures.reading import load_known
from conformance.scenarios.definitions import markdown_table
from conformance.spec.clauses import Clause, Level, load_clauses
from frameworks.registry import built_in, load
from results.show.clauses import is_url
from tools.docs.generate import table


def page(clauses: Mapping[str, Clause] | None = None) -> str:
    """Clauses, by default the suite's, as a Markdown page with a table for each family and an anchor by clause."""
    return "\n".join(_lines(clauses or load_clauses())) + "\n"


def _lines(clauses: Mapping[str, Clause]) -> Iterator[str]:
    counts = {level: sum(clause.level is level for clause in clauses.values()) for level in Level}
    yield "# Clauses"
    yield ""
    yield f"{len(clauses)} clauses: " + ", ".join(f"{n} {level}" for level, n in counts.items() if n) + "."
    yield "MUST, SHOULD and MAY are judged. An OBSERVATION is a legitimate difference, recorded and compared; a"
    yield "MEASUREMENT is a cost. In formulas `S` is the loss scale, `k` the number of micro-batches in a window and"
    yield "`u` the unit roundoff of a format."
    for family, members in groupby(clauses.values(), key=lambda clause: clause.family):
        yield from ("", f"## {family}", "")
        yield "| clause | level | requirement | observed by | source | broken before |"
        yield "|---|---|---|---|---|---|"
        for clause in members:
            history = "<br>".join(f"[{i.thread}]({i.url}): {_cell(i.what)}" for i in clause.history)
            cells = (clause.requirement, clause.observed_by, clause.source)
            anchor = f'<a id="{clause.id}"></a>`{clause.id}`'
            yield f"| {anchor} | {clause.level} | {' | '.join(map(_cell, cells))} | {history} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@cache
def blocks() -> Mapping[str, str]:
    """The texts of the blocks of tables, by name."""
    reference = load("reference", "cpu")
    return {
        "drawn": coverage.table(coverage.draw_cases(reference), reference),
        "left out of drawing": exclusions(),
        "beyond drawing": ", ".join(f"[{clause}](clauses.md#{clause})" for clause in coverage.beyond_drawing()),
    }


def exclusions() -> str:
    """Every exclusion as a row: where, under which condition, and what goes wrong there."""
    rows = []
    for name in built_in():
        for entry in load_known([name]).exclusions:
            link = entry.finding.text.link
            finding = f"[{entry.finding.id}]({link})" if is_url(link) else f"`{entry.finding.id}`"
            rows.append((name, entry.mode, " and ".join(f"`{feature}`" for feature in entry.when), finding))
    return table(("framework", "mode", "a program that has", "finding"), rows)


def ways() -> Mapping[str, str]:
    """The block "ways": a table for each adapter that declares any."""
    parts = []
    for name in built_in():
        if rows := [(f"`{way}`", f"`{calls}`", limits) for way, calls, limits in ways_rows(name)]:
            parts.append(f"**{name}**\n\n{markdown_table(WAYS_HEADER, rows)}")
    return {"ways": "\n\n".join(parts)}
