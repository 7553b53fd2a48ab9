"""Records of a version widen or narrow exclusions with the expectations of their finding."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.support.twin_records import BOTH, TEXT, ZERO, confirmed, passing, record

EXCLUSION = """
[[exclusion]]
finding = "first"
versions = "<=2.0"
when = ["optimizer=adam"]

[[finding]]
id = "third"
class = "documented"
consequence = "error"
reason = "It does."
link = "none found"

[[expectation]]
finding = "third"
clause = "scaling.automaton"
versions = "==2.0"
mode = "another"
signature = "zero"

[[exclusion]]
finding = "third"
versions = ">=1.0,<=2.0"
when = ["optimizer=sgd"]
"""
"""An exclusion of a finding with expectations in the records' series, and one of a finding without."""
REPAIRED = passing("test_a[x]"), passing("test_b"), ZERO


def ranges(text: str) -> list[str]:
    """The versions of the exclusions."""
    return [each["versions"] for each in tomllib.loads(text)["exclusion"]]


def test_an_exclusion_is_widened_with_the_expectations_of_its_finding(path: Path) -> None:
    path.write_text(TEXT + EXCLUSION)
    outcome = confirmed(path, record("3.0", *BOTH))
    assert ranges(outcome.text) == ["<=3.0", ">=1.0,<=3.0"]
    assert ("exclusion of third", ">=1.0,<=2.0", ">=1.0,<=3.0") in outcome.changes


def test_an_exclusion_ends_with_the_expectations_of_its_finding(path: Path) -> None:
    path.write_text(TEXT + EXCLUSION)
    assert ranges(confirmed(path, record("3.0", *REPAIRED)).text) == ["<=2.0", ">=1.0,<=3.0"]


def test_an_exclusion_of_a_defect_that_occurs_in_no_version_goes(path: Path) -> None:
    path.write_text(TEXT.replace('cpu.eager = ["1.0", "2.0"]', 'cpu.eager = ["2.0"]') + EXCLUSION)
    after = tomllib.loads(confirmed(path, record("2.0", *REPAIRED)).text)
    assert [each["finding"] for each in after["exclusion"]] == ["third"]
    assert "first" not in {each["id"] for each in after["finding"]}


def test_an_exclusion_of_another_mode_stays(path: Path) -> None:
    path.write_text(TEXT + EXCLUSION.replace('versions = "<=2.0"', 'versions = "<=2.0"\nmode = "other"', 1))
    assert ranges(confirmed(path, record("3.0", *BOTH)).text)[0] == "<=2.0"
