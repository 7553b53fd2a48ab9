"""Runs every program of the findings with the frameworks that are installed: `tox -e findings`.

Not collected with the suite's own tests, whose environment has no framework.
"""

from __future__ import annotations

import pytest

from conformance import programs
from conformance.expectations import load_known
from conformance.findings import Finding

SHOWN = [finding for finding in load_known().findings if finding.program is not None]


@pytest.mark.parametrize("finding", SHOWN, ids=lambda each: f"{each.framework}-{each.id}")
def test_the_program_shows_what_its_finding_says(finding: Finding) -> None:
    assert finding.program is not None
    shown = programs.run(finding.program)
    assert shown.there, f"gone: expected {shown.expected}, seen {shown.seen}"
    assert shown.expected != shown.seen
