"""The page of all clauses."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from conformance.spec.clauses import Clause, Level, load_clauses


def page(clauses: Mapping[str, Clause] | None = None) -> str:
    """The clauses, the suite's by default, as one Markdown page: a table a family, and an anchor a clause."""
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
