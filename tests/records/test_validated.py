"""`conformance validate` names every bad file, and `baseline accept` refuses a record before it shows anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.runner import baselines
from results.record.reading import write
from tests.support.small_record import BASE


def test_every_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, missing = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "missing.json"
    write(good, BASE)
    bad.write_text("{}", "utf-8")
    assert main(["validate", *map(str, (bad, missing, good))]) == 2
    said = capsys.readouterr()
    assert [line.split(":")[1].strip() for line in said.err.splitlines()] == [str(bad), str(missing)]
    assert said.out == f"{good}: a valid record, complete, 3 verdicts\n"


def test_a_complete_record_has_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    write(path, replace(BASE, status="partial", verdicts=()))
    assert main(["validate", str(path)]) == 0
    path.write_text(path.read_text("utf-8").replace('"partial"', '"complete"'), "utf-8")
    assert main(["validate", str(path)]) == 2
    problem = "is not a valid record (status: got complete without a verdict, want at least one)"
    assert capsys.readouterr().err == f"conformance: {path}: {problem}; run the suite to write it again, or remove it\n"


def test_nothing_is_shown_of_a_record_that_may_not_be_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baselines, "lacking", lambda _: [])
    path = tmp_path / "x.json"
    write(path, replace(BASE, seed=5))
    before = sorted(baselines.BASELINES.iterdir())
    assert main(["baseline", "accept", str(path), "--reason", "no"]) == 2
    said = capsys.readouterr()
    assert said.err == f"conformance: {path}: is of seed 5, and baselines are of seed 0; run with --seed=0\n"
    assert not said.out
    assert sorted(baselines.BASELINES.iterdir()) == before
