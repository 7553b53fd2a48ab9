"""Which commands there are, by the step of the work in which a user needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A command.

    Attributes:
        place: MODULE:ATTRIBUTE within `conformance.cli`.
        purpose: what it does, in one line.
    """

    name: str
    place: str
    purpose: str


SECTIONS: Mapping[str, tuple[Entry, ...]] = {
    "Start": (
        Entry("quickstart", "starting:quickstart", "The suite in half a minute, without any framework."),
        Entry("spec", "specifying:spec", "The clauses: list, search, show."),
        Entry("frameworks", "adapters:frameworks", "Which adapters are there, and what each declares; a new one."),
        Entry("install", "starting:install", "Install frameworks, at the pinned versions or at others."),
    ),
    "Judge": (
        Entry("run", "running:run", "Judge a framework and write a record, or run a scenario."),
        Entry("stress", "stressing:stress", "Judge it at many seeds: which verdicts are not the same at all?"),
    ),
    "Read records": (
        Entry("table", "tables:table", "Counts by family, or one word a clause."),
        Entry("slowest", "tables:slowest", "The tests or clauses that took longest."),
        Entry("report", "reporting:report", "One HTML page."),
        Entry("export", "exporting:export", "For other tools: CTRF, or Markdown."),
        Entry("validate", "tables:validate", "Are the files valid records?"),
        Entry("recover", "tables:recover", "Turn the journal of a run that was killed into a record."),
    ),
    "Compare records": (
        Entry("compare", "comparing:compare", "What changed between two records, or two sets of them."),
        Entry("baseline", "comparing:baseline", "The committed records that runs are compared with."),
    ),
    "Act on failures": (
        Entry("findings", "finding:findings", "What a framework is known not to do, with programs."),
        Entry("expectations", "expecting:expectations", "The known failures of an adapter, written from records."),
        Entry("issue", "finding:issue", "A known failure as a report for the framework's tracker."),
        Entry("comment", "commenting:comment", "Keep one comment on a pull request up to date."),
    ),
    "Develop the suite": (
        Entry("self", "developing:development", "Its tests, faults, generated pages, locks and benchmarks."),
    ),
}
"""Commands by the heading that the help shows."""
