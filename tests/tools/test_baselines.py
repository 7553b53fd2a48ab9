"""The committed baselines are of these tests."""

from dataclasses import replace

from conformance.runner.identity import DEMANDS, suite_areas
from tests.support.small_record import BASE
from tools.baselines import default_baselines, stale


def test_baselines_of_default_modes_are_of_the_present_clauses_checks_and_recipes() -> None:
    areas = suite_areas()
    old = {
        f"{record.series.framework} {record.series.mode}": stale(record, areas, DEMANDS)
        for record in default_baselines()
    }
    assert {name: names for name, names in old.items() if names} == {}, "judge by all tests and accept the records"
    assert len(old) == 7


def test_stale_names_the_areas_that_differ() -> None:
    record = replace(BASE, suite=replace(BASE.suite, areas={"tests": "1", "fixtures": "2"}))
    assert stale(record, {"tests": "1", "fixtures": "3"}, ("tests", "fixtures")) == ["fixtures"]
