"""The parts of README and docs that a command regenerates: counts, baselines, findings, upgrades, scenarios,
promises, and where the suite's own time goes.

    python -m conformance.pages.generate            every page
    python -m conformance.pages.generate README.md  one of them

Exit status 0, or 2 with one line if a file has no markers, lacks one of a pair or cannot be read or written.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

from conformance.expectations.entries import load_known
from conformance.inventory.tests import inventory
from conformance.pages import example_failure, findings
from conformance.pages.promises import PROMISES
from conformance.pages.promises import table as promise_table
from conformance.pages.upgrades import upgrades
from conformance.running.baselines import BASELINES
from conformance.running.recorder import SETTINGS
from conformance.scenarios import SCENARIOS
from conformance.scenarios.launching import FOLDER
from conformance.scenarios.table import durations
from conformance.scenarios.table import markdown as markdown_table
from conformance.spec.clauses import Level, load_clauses
from results.compare.comparison import Comparison
from results.compare.pairing import Comparisons
from results.record.folders import listed
from results.record.reading import Record, load
from results.show import times
from results.show.differences import headline, section, to_text
from results.show.marks import words
from results.show.table import plain

WIDTH = 118
COSTLIEST = 25
ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": ("clauses", "failure"),
    "docs/results.md": ("baselines",),
    "docs/findings.md": ("finding counts", "findings", "workarounds"),
    "docs/upgrades.md": ("example", "upgrades", "changes"),
    "docs/promises.md": tuple(PROMISES),
    "docs/speed.md": ("seconds by family", "seconds by clause", "slowest tests"),
    "docs/scenarios.md": ("scenario times", *(f"scenario {name}" for name in SCENARIOS)),
}
"""The blocks of each page."""


def clause_count() -> str:
    """How many clauses there are, by family, and how many have tests."""
    clauses = load_clauses()
    tested = {SETTINGS, *(code.clause for code in inventory().values())}
    levels = Counter(clause.level for clause in clauses.values())
    families = Counter(clause.family for clause in clauses.values())
    counted = ", ".join(f"{family} {count}" for family, count in sorted(families.items()))
    by_level = ", ".join(f"{levels[level]} {level}" for level in Level if levels[level])
    return f"{len(clauses)} clauses ({counted}), {len(tested)} of them with tests; {by_level}."


def accepted() -> list[Record]:
    """The committed records that later ones are compared with."""
    return [load(path) for path in listed(BASELINES)]


def baselines() -> str:
    """The committed records as a table."""
    return f"```text\n{plain(accepted(), WIDTH).strip(chr(10))}\n```"


def upgrade_list(pairs: Iterable[Comparison]) -> str:
    """An item for each: how many changes of each kind there are."""
    return "\n".join(f"- {words(headline(pair))}" for pair in pairs)


def example(pair: Comparison) -> str:
    """What the command prints of one of them."""
    return f"```text\n{to_text(Comparisons((pair,))).strip()}\n```"


def runs() -> dict[str, list[Record]]:
    """The committed records of each scenario."""
    return {name: [load(path) for path in listed(FOLDER / name)] for name in SCENARIOS}


def scenarios(found: dict[str, list[Record]]) -> dict[str, str]:
    """A table of each scenario's records, and one of what they took."""
    tables = {f"scenario {name}": markdown_table(SCENARIOS[name], records) for name, records in found.items()}
    return {"scenario times": durations(found), **tables}


@cache
def blocks() -> dict[str, str]:
    """Every generated block by the name in its markers."""
    pairs, trained, records = upgrades(), runs(), accepted()
    told = [*records, *chain.from_iterable(trained.values())]
    return {
        "clauses": clause_count(),
        "failure": example_failure.block(),
        "baselines": baselines(),
        **findings.blocks(load_known()),
        "upgrades": upgrade_list(pairs),
        "example": example(next((pair for pair in pairs if pair.old.series.framework == "torch"), pairs[0])),
        "changes": "\n\n".join("\n".join(section(pair)).strip() for pair in pairs),
        "seconds by family": times.markdown(records, times.seconds),
        "seconds by clause": times.markdown(records, times.by_clause, COSTLIEST),
        "slowest tests": "\n".join(("```text", *times.listed(records, "test", times.SLOWEST), "```")),
        **{name: promise_table(quantities, told) for name, quantities in PROMISES.items()},
        **scenarios(trained),
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
    """Regenerates the blocks of some files, of every page if none is named; returns the exit status."""
    made = blocks()
    for path in [Path(name) for name in arguments] or [ROOT / page for page in PAGES]:
        try:
            text = path.read_text("utf-8")
            wanted = {name: block for name, block in made.items() if f"<!-- {name}: " in text}
            if not wanted:
                raise ValueError("it has no markers")
            path.write_text(placed(text, wanted), "utf-8")
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
