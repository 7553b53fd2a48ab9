"""The page of the suite's own cost says what the samples give, and the command measures what it says."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.suite import __main__ as command
from benchmarks.suite import measuring, tables
from benchmarks.suite.samples import STORE, CommandRuns, SuiteCost
from conformance.running import plugin
from tests.support import one_page

PLAIN = tuple(CommandRuns(what, (3.0, 2.0), (1.0, 1.5)) for what in tables.START)
SHARES = tuple(
    CommandRuns(share, (2.0 + tests,), (1.0 + tests / 2,), tests // 2, tests)
    for share, tests in zip(measuring.SHARES, (4, 8, 12, 16), strict=True)
)
FOUND = SuiteCost(
    "some",
    "1",
    "cpu eager",
    "a machine",
    "now",
    "cost",
    (*PLAIN, *SHARES, CommandRuns("two workers", (9.0,), (12.0,), 8, 16)),
)


def test_without_samples_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "STORE", replace(STORE, folder=tmp_path))
    assert tables.blocks()["suite cost"] == "No costs are kept."


def test_the_block_tells_start_workers_and_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = replace(STORE, folder=tmp_path)
    monkeypatch.setattr(tables, "STORE", store)
    store.save(FOUND, "some")
    assert store.load("some") == FOUND
    lines = tables.blocks()["suite cost"].splitlines()
    assert f"| some 1, cpu eager |{' 1.00 (2.00) |' * len(tables.START)}" in lines
    assert "| some 1, cpu eager, `-k cost` | 16 | 18.0 s | 9.0 s | 9.0 s | 12.0 s | × 2.00 |" in lines
    grown = "3.0 (2 / 4) | 5.0 (4 / 8) | 7.0 (6 / 12) | 9.0 (8 / 16) | 1.0 | 500 ms | 0%"
    assert f"| some 1, cpu eager, `-k cost` | {grown} |" in lines
    assert lines[-1] == "- some: now; a machine."


def test_a_bend_shows_as_distance_from_the_line() -> None:
    bent = [*SHARES[:3], CommandRuns("1.0", (18.0,), (18.0,), 8, 16)]
    fixed, each, off = tables.line(bent)
    assert each > 0.5
    assert 0.1 < off < 0.5
    assert abs(fixed + each * 4 - 3.0) / 18.0 <= off


def test_shares_of_the_clauses_are_judged_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(measuring, "SHARES", ("0.5", "1.0"))
    found = measuring.cost("reference", "test_resume and scaler")
    assert [run.what for run in found.runs] == [*tables.START, "0.5", "1.0", "two workers"]
    half, whole, two = found.runs[-3:]
    assert 0 < half.clauses < whole.clauses == two.clauses
    assert 0 < half.tests < whole.tests == two.tests
    assert found.of("import").cpu_s[0] < found.of("first test").cpu_s[0]
    assert all(0 < spent < 100 for run in found.runs for spent in (*run.wall_s, *run.cpu_s))
    assert (found.framework, found.place) == ("reference", "cpu emulated")


def test_costs_without_a_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = replace(STORE, folder=tmp_path)
    monkeypatch.setattr(tables, "STORE", store)
    store.save(SuiteCost("some", "1", "cpu", "", "", "", PLAIN), "some")
    with pytest.raises(ValueError, match="some: no run is of"):
        tables.blocks()


def test_the_command_measures_keeps_and_fills_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = one_page(tmp_path, monkeypatch, "nothing to fill\n")
    for module in (command, tables):
        monkeypatch.setattr(module, "STORE", replace(STORE, folder=tmp_path / "samples"))
    monkeypatch.setattr(measuring, "cost", lambda *_: FOUND)
    assert command.main(["some"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    page.write_text("<!-- suite cost: begin -->\n<!-- suite cost: end -->\n")
    assert command.main(["some"]) == 0
    assert "× 2.00" in page.read_text()


def test_a_command_that_fails_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["mxnet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown framework 'mxnet'" in line


def test_what_importing_made_is_out_of_the_collectors_rounds() -> None:
    session = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
    before = gc.get_freeze_count()
    plugin.pytest_collection_finish(session)
    assert gc.get_freeze_count() == before, "a run without a framework leaves the collector alone"
    session.config.stash[plugin._FRAMEWORK] = object()
    try:
        plugin.pytest_collection_finish(session)
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
