"""The commands, grouped by task."""

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
        Entry("quickstart", "starting:quickstart", "Demonstrate the suite in half a minute, without a framework."),
        Entry("spec", "specifying:spec", "List, search and show clauses."),
        Entry("frameworks", "adapters:frameworks", "List adapters and their capabilities."),
        Entry("surface", "surface:surface", "List a framework's public parameters, and those that the suites use."),
        Entry("ways", "ways:ways", "List the public calls of a technique that a run can choose."),
        Entry("new", "adapters:new", "Create a training loop to judge, or an adapter."),
        Entry("install", "starting:install", "Install frameworks, at the pinned or at other versions."),
        Entry("bundle", "bundling:bundle", "Pack the suite and a framework's wheels for a machine without a network."),
        Entry("doctor", "doctor:doctor", "Check what a run needs, step by step, and name the step that fails."),
    ),
    "Run the suites": (
        Entry("run", "running:run", "Run the suites on a framework and write a record, or run a scenario."),
        Entry("judge-model", "judging_models:judge_model", "Judge a model without an adapter, or all of a library."),
        Entry("stress", "stressing:stress", "Run under many seeds and list unstable verdicts."),
    ),
    "Read records": (
        Entry("table", "tables:table", "Show outcomes by family, or one word for each clause."),
        Entry("slowest", "tables:slowest", "List the slowest tests or clauses."),
        Entry("report", "reporting:report", "Write one HTML page."),
        Entry("export", "exporting:export", "Convert records to CTRF or Markdown."),
        Entry("validate", "tables:validate", "Check that files are valid records."),
        Entry("recover", "tables:recover", "Convert the journal of a killed run to a record."),
    ),
    "Compare records": (
        Entry("compare", "comparing:compare", "Show what changed between two records, or two sets of records."),
        Entry("baseline", "comparing:baseline", "Accept a record as the baseline of later runs."),
    ),
    "Compare versions": (
        Entry(
            "sweep",
            "versions.sweeping:sweep",
            "Judge many versions of frameworks and companions, each in an environment.",
        ),
        Entry(
            "history", "versions.history:history", "Show what each clause does in each version, and where it changed."
        ),
        Entry(
            "bisect", "versions.bisecting:bisection", "Find the release with which a clause began to fail, or to hold."
        ),
        Entry(
            "race",
            "versions.racing:race_command",
            "Measure whether a version is slower than another, or takes more memory.",
        ),
    ),
    "Act on failures": (
        Entry("findings", "finding:findings", "List the known defects of a framework, with reproducers."),
        Entry("expectations", "expecting:expectations", "Update the known failures of an adapter from records."),
        Entry("issue", "finding:issue", "Draft an upstream issue for a known failure."),
        Entry("comment", "commenting:comment", "Write or update a comment on a pull request."),
    ),
}
"""Commands by heading of the help."""
