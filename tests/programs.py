"""Runs every program of the findings with the frameworks that are installed: `tox -e findings`.

Not collected with the suite's own tests, whose environment has no framework.
"""

from __future__ import annotations

import pytest

from conformance.expectations.entries import load_known
from conformance.judging import programs
from conformance.running.machine import instruction_sets
from conformance.spec.findings import Finding, matched
from frameworks.install import installed_version

KNOWN = load_known()
SHOWN = [finding for finding in KNOWN.findings if finding.program is not None]


@pytest.mark.parametrize("finding", SHOWN, ids=lambda each: f"{each.framework}-{each.id}")
def test_the_program_shows_what_its_finding_says(finding: Finding) -> None:
    version = installed_version(finding.framework)
    assert finding.program is not None
    assert version is not None, f"{finding.framework} is not installed"
    if lacking := finding.lacking():
        pytest.skip(f"{', '.join(lacking)} is not installed")
    if not matched(finding.processor, instruction_sets()):
        pytest.skip(f"it shows on processors with {finding.processor}")
    shown = programs.run(finding.program)
    assert shown.there is KNOWN.expected(finding, version), f"expected {shown.expected}, seen {shown.seen}"
    assert shown.there is (shown.expected != shown.seen)
