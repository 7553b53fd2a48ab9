"""`conformance run --scenario`: records, the table, and how it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.scenarios import SCENARIOS
from conformance.scenarios.table import markdown, rows
from results.record.files import read
from results.record.reading import load
from tests.support.recorded import by_name
from tests.support.suite_runs import Ended, called, run


def conformance(*words: str | Path) -> Ended:
    return called("run", *words)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    folder = tmp_path_factory.mktemp("scenarios")
    return conformance("--folder", folder, "--scenario", "segments", "--rounds", "3", "reference"), folder


def test_a_run_writes_a_record_and_shows_it(ran: tuple[Ended, Path]) -> None:
    ended, folder = ran
    assert ended.status == 0, ended.lines
    record = load(folder / "segments" / "reference-1-cpu-emulated.json.gz")
    assert record.selection == "--scenario segments --rounds 3"
    assert {verdict.case for verdict in record.verdicts} == {"plain", "two segments"}
    assert "--rounds 3" in record.verdicts[0].repro
    assert len(by_name(record.traces)["segments/plain"].curves["loss"]) == 3
    assert "3 rounds of 256 samples, of 80" in ended.output
    assert str(folder) not in read(folder / "segments" / "reference-1-cpu-emulated.json.gz").decode("utf-8")


def test_the_tables_numbers_are_the_records(ran: tuple[Ended, Path]) -> None:
    _, folder = ran
    record = load(folder / "segments" / "reference-1-cpu-emulated.json.gz")
    costs = by_name(record.measurements)
    saved = costs["saved bytes/two segments"]
    before, changed = (
        {(row.side, row.quantity): row for row in rows(SCENARIOS["segments"], [one])}
        for one in (
            record,
            replace(
                record,
                measurements=tuple(replace(m, samples=(12345.0,)) if m is saved else m for m in record.measurements),
            ),
        )
    )
    place = ("two segments", "bytes held")
    assert before[place].cells == (f"{saved.samples[0]:,.0f}",)
    assert changed[place].cells == ("12,345",)
    share = 12345.0 / costs["saved bytes/plain"].samples[0]
    row = changed["two segments", "bytes ÷ plain's"]
    assert (row.document, row.cells) == ("0.4 to 0.5", (f"{share:.3g}",))
    times = costs["seconds a round/two segments"]
    assert before["plain", "seconds a round"].cells == (f"{sorted(times.control)[1]:.3g}",)
    assert before["two segments", "seconds a round"].cells == (f"{sorted(times.samples)[1]:.3g}",)
    table = markdown(SCENARIOS["segments"], [record, replace(record, notes=("another",))])
    assert "- reference emulated: 3 rounds of 256 samples, of 80\n" in table
    assert "- reference emulated: another" in table
    assert "| 12,345 |" not in markdown(SCENARIOS["segments"], [record])


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError('gone', name='sklearn')\n")
    words = [sys.executable, "-m", "conformance", "run", "--scenario", "opt-levels", "reference"]
    ended = run(words, PYTHONPATH=str(tmp_path), CONFORMANCE_MODES="")
    assert ended.status == 2, ended.lines
    assert ended.lines == ["reference: sklearn is missing: `conformance doctor` names what to install"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scenario", "sinus"), "no scenario 'sinus': one of sincos, segments"),
        (("--scenario", "segments", "--rounds", "2", "reference", "caffe"), "unknown framework 'caffe'"),
        (("--scenario", "sincos", "reference", "-k"), "'-k' is no framework"),
        (("--scenario", "graph-rewrite", "reference"), "no other framework rewrites a float32 graph"),
        (
            ("--scenario", "segments", "--mode", "fast", "reference"),
            "reference: reference has no mode 'fast': one of emulated",
        ),
        (("--scenario", "segments", "--device", "tpu", "reference"), "reference: reference sees no device 'tpu'"),
        (("--scenario", "segments", "--folder", "README.md", "reference"), "README.md/segments: cannot be written"),
        (("--scenario", "segments", "tests.nowhere:Class"), "cannot be imported"),
        ((), "Missing argument 'FRAMEWORK'"),
        (("--rounds", "3", "reference"), "--rounds is for scenarios; name one with --scenario"),
        (("reference", "--folder", "here"), "--folder is for scenarios"),
        (("reference", "--mode", ","), "--mode: got ',', want names with commas between them"),
    ],
)
def test_what_cannot_be_run_ends_in_one_line(words: tuple[str, ...], message: str) -> None:
    ended = conformance(*words)
    assert ended.status == 2, ended.lines
    assert len(ended.lines) == 1, ended.lines
    assert message in ended.lines[0]


def test_a_broken_framework_ends_the_command_with_1(tmp_path: Path) -> None:
    broken = "tests.scenarios.test_scenarios:Restarting"
    ended = conformance("--folder", tmp_path, "--scenario", "segments", "--rounds", "3", broken)
    assert ended.status == 1, ended.lines
    assert "fail: " in ended.output
    assert "parameters-differ" in read(next(tmp_path.rglob("*.json.gz"))).decode("utf-8")


def test_a_worker_that_dies_fails_the_command_though_another_ends(tmp_path: Path) -> None:
    dying = "tests.support.misbehaving:AbortingAtOnce"
    ended = conformance("--folder", tmp_path, "--scenario", "segments", "--rounds", "2", "reference", dying)
    assert ended.status == 2, ended.lines
    assert f"{dying}: the process exited with status -6" in ended.errors
    assert "reference" in ended.output


def test_every_scenario_is_listed() -> None:
    ended = conformance("--list-scenarios")
    assert ended.status == 0
    assert [line.split()[0] for line in ended.lines] == list(SCENARIOS)
