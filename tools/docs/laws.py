"""The blocks about drawn programs: what is drawn, what is left out and why, and what drawing does not reach."""

from collections.abc import Mapping
from functools import cache

from conformance.generative import coverage
from conformance.known_failures.reading import load_known
from conformance.spec.findings import Finding
from frameworks.registry import built_in, load
from results.show.marks import is_url
from tools.docs.generate import table


@cache
def blocks() -> Mapping[str, str]:
    """The texts of the blocks by name."""
    reference = load("reference", "cpu")
    return {
        "drawn": coverage.table(coverage.drawn(reference), reference),
        "left out of drawing": exclusions(),
        "beyond drawing": ", ".join(f"[{clause}](clauses.md#{clause})" for clause in coverage.beyond_drawing()),
    }


def exclusions() -> str:
    """Every exclusion as a row: where, under which condition, and what goes wrong there."""
    rows = [
        (name, entry.mode, " and ".join(f"`{feature}`" for feature in entry.when), _linked(entry.finding))
        for name in built_in()
        for entry in load_known([name]).exclusions
    ]
    return table(("framework", "mode", "a program that has", "finding"), rows)


def _linked(finding: Finding) -> str:
    """The id of a finding, as a link where somebody has reported it."""
    link = finding.text.link
    return f"[{finding.id}]({link})" if is_url(link) else f"`{finding.id}`"
