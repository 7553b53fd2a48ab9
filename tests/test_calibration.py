"""The rates that docs/measuring.md promises hold on the committed samples, and the page says what these give."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.calibration import recording, samples, trials
from benchmarks.calibration.rates import Rate
from benchmarks.calibration.rules import controlled, paired
from benchmarks.calibration.samples import Recording
from conformance.pages import generate
from results.compare.ratio import FEWEST
from tests.support import ROOT, one_page

PAGE = ROOT / "docs" / "measuring.md"
RECORDINGS = [(design, disturbed) for design in ("interleaved", "separate") for disturbed in (False, True)]
EACH = pytest.mark.parametrize(("design", "disturbed"), RECORDINGS)


@cache
def recorded(design: str, disturbed: bool) -> Recording:
    """A committed recording."""
    return samples.STORE.load(samples.name(design, disturbed))


@EACH
def test_the_slower_side_was_five_percent_slower_in_truth(design: str, disturbed: bool) -> None:
    noise = 0.01 if disturbed else 0.001
    assert trials.slowdown(recorded(design, disturbed)) == pytest.approx(1.05, abs=noise)


def test_costs_that_were_timed_in_turn_are_judged_as_promised() -> None:
    quiet, disturbed = (trials.within(recorded("interleaved", state)) for state in (False, True))
    assert min(len(quiet), len(disturbed)) >= 300
    assert trials.false_alarms(paired, [*quiet, *disturbed], FEWEST).interval[1] <= 0.01
    assert trials.found(paired, quiet, FEWEST).share >= 0.95


def test_costs_of_two_processes_would_be_judged_so_beside_the_plain_step() -> None:
    quiet, disturbed = (trials.between(recorded("separate", state), "plain") for state in (False, True))
    assert min(len(quiet), len(disturbed)) >= 40
    assert trials.false_alarms(controlled, [*quiet, *disturbed], FEWEST).share <= 0.01
    assert trials.found(controlled, quiet, FEWEST).share >= 0.95


@pytest.mark.parametrize("control", ["", "foreign"])
def test_nothing_less_than_the_plain_step_makes_two_processes_comparable(control: str) -> None:
    alone = trials.between(recorded("separate", False), control)
    assert trials.false_alarms(controlled if control else paired, alone, FEWEST).interval[0] > 0.01


@EACH
def test_the_page_says_what_the_samples_give(design: str, disturbed: bool) -> None:
    pytest.importorskip("asv", reason="the rules of asv are tried by its own code")
    from benchmarks.calibration import tables

    name = f"{design}, {'disturbed' if disturbed else 'quiet'}"
    block = PAGE.read_text("utf-8").partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    found = recorded(design, disturbed)
    quick = [pairs for pairs in tables.PAIRS[design] if pairs >= 40]  # below, asv counts every order of the samples
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
    said = [(line[0], *line[-len(quick) :]) for line in lines if line[1] != "10"]
    rates = (trials.false_alarms, trials.found)
    made = [
        (row, *(rate(rule, put, pairs).told for pairs in quick))
        for rate in rates
        for row, rule, put in tables.rows(found)
    ]
    assert said == made, "run `python -m benchmarks.calibration table docs/measuring.md`"
    assert tables.recorded(found) in block


def test_the_page_promises_what_the_samples_give() -> None:
    pytest.importorskip("asv", reason="the rules of asv are tried by its own code")
    from benchmarks.calibration import tables

    assert f"<!-- promise: begin -->\n{tables.promise()}\n<!-- promise: end -->" in PAGE.read_text("utf-8")


def test_a_rate_has_an_exact_interval() -> None:
    assert Rate(0, 320).told == "0 % (0–1.15)"
    assert Rate(320, 320).interval[0] == pytest.approx(0.025 ** (1 / 320))
    assert Rate.of([True, False, False, False]).share == 0.25


@pytest.mark.parametrize("design", sorted(recording.DESIGNS))
def test_samples_are_recorded_kept_and_read(design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psutil", reason="a recording says how busy the machine was")
    few = replace(recording.DESIGNS[design], runs=1, rounds=2)
    monkeypatch.setitem(recording.DESIGNS, design, few)
    found = recording.record(design, disturbed=True, processes=2)
    assert [run.process for run in found.runs] == [0, 1]
    assert all(set(run.times) == set(few.sides) for run in found.runs)
    assert all(0 < time * found.tick_s < 10 for run in found.runs for times in run.times.values() for time in times)
    store = replace(samples.STORE, folder=tmp_path / "some")
    store.save(found, "file")
    assert store.load("file") == found


def test_a_process_that_fails_ends_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recording.DESIGNS, "separate", replace(recording.DESIGNS["separate"], rounds="many"))
    with pytest.raises(RuntimeError, match=r"a process exited with 1: [^\n]*Error[^\n]*$"):
        recording.record("separate", disturbed=False, processes=1)


def test_the_command_fills_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("asv", reason="the rules of asv are tried by its own code")
    from benchmarks.calibration import __main__ as command
    from benchmarks.calibration import tables

    assert generate.SOURCES["benchmarks.calibration.tables:blocks"] == command.BLOCKS
    monkeypatch.setattr(tables, "blocks", lambda: dict.fromkeys(command.BLOCKS, "text"))
    page = one_page(tmp_path, monkeypatch, "nothing to fill\n")
    assert command.main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert page.read_text() == "nothing to fill\n"
    page.write_text("".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in command.BLOCKS))
    assert command.main([]) == 0
    assert page.read_text().count("begin -->\ntext\n<!--") == len(command.BLOCKS)
