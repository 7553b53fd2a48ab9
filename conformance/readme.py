"""The parts of the README that a command regenerates: the baselines' table, the clauses' count, the known failures.

    python -m conformance.readme README.md

Exit status 0, or 2 with one line if the file lacks a pair of markers or cannot be read or written.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from conformance.baselines import BASELINES
from conformance.clauses import Level, load_clauses
from conformance.expectations import Expectation, load_expectations
from conformance.inventory import inventory
from conformance.recorder import SETTINGS
from results.records import load
from results.table import plain

WIDTH = 118


def known_failures(expectations: Iterable[Expectation]) -> str:
    """A list a framework: what goes wrong, in which clauses, and where it is reported. One item a reason."""
    return "\n".join(_failures(expectations)).rstrip()


def _failures(expectations: Iterable[Expectation]) -> Iterator[str]:
    for framework, entries in groupby(sorted(expectations, key=_order), key=lambda entry: entry.framework):
        yield from (f"**{framework}**", "")
        for _, alike in groupby(entries, key=lambda entry: (entry.versions, entry.reason, entry.link)):
            group = list(alike)
            clauses = ", ".join(f"`{clause}`" for clause in sorted({entry.clause for entry in group}))
            modes = "".join(f", {mode}" for mode in sorted({entry.mode for entry in group} - {"*"}))
            yield f"- {group[0].reason} {clauses} ({group[0].versions}{modes}; [link]({group[0].link}))"
        yield ""


def _order(entry: Expectation) -> tuple[str, ...]:
    return entry.framework, entry.versions, entry.reason, entry.link, entry.clause, entry.mode


def clause_count() -> str:
    """How many clauses there are, by family, and how many have tests."""
    clauses = load_clauses()
    tested = {SETTINGS, *(code.clause for code in inventory().values())}
    levels = Counter(clause.level for clause in clauses.values())
    families = Counter(clause.family for clause in clauses.values())
    counted = ", ".join(f"{family} {count}" for family, count in sorted(families.items()))
    by_level = ", ".join(f"{levels[level]} {level}" for level in Level if levels[level])
    return f"{len(clauses)} clauses ({counted}), {len(tested)} of them with tests; {by_level}."


def baselines() -> str:
    """The committed records as a table."""
    records = [load(path) for path in sorted(BASELINES.glob("*.json"))]
    return f"```text\n{plain(records, WIDTH).strip(chr(10))}\n```"


def blocks() -> dict[str, str]:
    """Every generated block by the name in its markers."""
    return {
        "clauses": clause_count(),
        "baselines": baselines(),
        "known failures": known_failures(load_expectations()),
    }


def placed(text: str, made: dict[str, str]) -> str:
    """`text` with every block between its markers, `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises:
        ValueError: a pair of markers is missing.
    """
    for name, block in made.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"there is no {begin} … {end}")
        text = f"{before}{begin}\n{block}\n{end}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Regenerates the blocks of a file; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m conformance.readme README.md", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        path.write_text(placed(path.read_text("utf-8"), blocks()), "utf-8")
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
