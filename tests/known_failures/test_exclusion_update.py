"""Records of a version widen or narrow exclusions with the expectations of their finding."""

from __future__ import annotations

import tomllib
from pathlib import Path

from conformance.known_failures.confirm import confirm
from conformance.known_failures.reading import read_known
from tests.support.twin_records import BOTH, TEXT, ZERO, passing, record

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


def test_an_exclusion_is_widened_with_the_expectations_of_its_finding(path: Path) -> None:
    path.write_text(TEXT + EXCLUSION)
    confirmed = confirm([record("3.0", *BOTH)], read_known(path.parent, "twin"), path.read_text())
    ranges = [each["versions"] for each in tomllib.loads(confirmed.text)["exclusion"]]
    assert ranges == ["<=3.0", ">=1.0,<=3.0"]
    assert ("exclusion of third", ">=1.0,<=2.0", ">=1.0,<=3.0") in confirmed.changes


def test_an_exclusion_ends_with_the_expectations_of_its_finding(path: Path) -> None:
    path.write_text(TEXT + EXCLUSION)
    verdicts = passing("test_a[x]"), passing("test_b"), ZERO
    confirmed = confirm([record("3.0", *verdicts)], read_known(path.parent, "twin"), path.read_text())
    ranges = [each["versions"] for each in tomllib.loads(confirmed.text)["exclusion"]]
    assert ranges == ["<=2.0", ">=1.0,<=3.0"]


def test_an_exclusion_of_a_defect_that_occurs_in_no_version_goes(path: Path) -> None:
    text = TEXT.replace('cpu.eager = ["1.0", "2.0"]', 'cpu.eager = ["2.0"]') + EXCLUSION
    path.write_text(text)
    verdicts = passing("test_a[x]"), passing("test_b"), ZERO
    confirmed = confirm([record("2.0", *verdicts)], read_known(path.parent, "twin"), text)
    assert [each["finding"] for each in tomllib.loads(confirmed.text)["exclusion"]] == ["third"]
    assert "first" not in {each["id"] for each in tomllib.loads(confirmed.text)["finding"]}


def test_an_exclusion_of_another_mode_stays(path: Path) -> None:
    text = TEXT + EXCLUSION.replace('versions = "<=2.0"', 'versions = "<=2.0"\nmode = "other"', 1)
    path.write_text(text)
    confirmed = confirm([record("3.0", *BOTH)], read_known(path.parent, "twin"), text)
    assert tomllib.loads(confirmed.text)["exclusion"][0]["versions"] == "<=2.0"
