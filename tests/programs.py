"""Runs every program of the findings with the frameworks that are installed: `tox -e findings`.

Not collected with the suite's own tests, whose environment has no framework.
"""

import pytest

from conformance.checks import reproducers
from conformance.known_failures.reading import load_known
from conformance.runner.machine import devices, instruction_sets
from conformance.spec.clauses import Finding
from frameworks.installer.install import installed_version
from tests.support.suite_runs import hang_limit

KNOWN = load_known()
WITH_PROGRAM = [finding for finding in KNOWN.findings if finding.program is not None]


@pytest.mark.parametrize("finding", WITH_PROGRAM, ids=lambda finding: f"{finding.framework}-{finding.id}")
def test_run_of_a_program_shows_its_finding(finding: Finding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducers, "LIMIT_S", hang_limit())
    version = installed_version(finding.framework)
    assert finding.program is not None
    assert version is not None, f"{finding.framework} is not installed"
    if reason := finding.not_here(devices(), instruction_sets()):
        pytest.skip(reason)
    result = reproducers.run(finding.program)
    assert result.present is KNOWN.is_expected(finding, version), f"expected {result.expected}, seen {result.observed}"
    assert result.present is (result.expected != result.observed)
