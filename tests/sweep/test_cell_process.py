"""The process of a cell: a toy framework from a wheel is installed, judged once, and not again."""

from __future__ import annotations

import gzip
import signal
import tempfile
from pathlib import Path

import pytest

from conformance.sweep import cell_process, supervision
from conformance.sweep.cell_process import CellNotJudged, CellRun, judge
from conformance.sweep.cells import SweepCell
from conformance.sweep.driver import SweepSettings, judge_cell, request_of
from conformance.sweep.plan import SweepPlan
from conformance.sweep.requests import OUT_OF_TIME, CellResult
from conformance.sweep.supervision import Finished
from conformance.sweep.verdict_cache import VerdictCache
from frameworks.installer.resolution import Lock
from results.record.outcomes import Outcome
from results.record.reading import Record, from_json
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY, here, offline, write_wheel

PLAN = SweepPlan("toy", (), ("-k", "test_skipped_update_keeps_average or test_overflow_can_be_discarded"), repeat=False)
SKIP = "scaling.skip-is-atomic"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSettings:
    """A sweep with caches of its own; pip and uv see a toy with a fault, and one that cannot be imported."""
    write_wheel(tmp_path / "wheels", PACKAGE, "4.0")
    write_wheel(tmp_path / "wheels", PACKAGE, "7.0", source="raise ImportError('cannot load /opt/x/libtoy.so')")
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    return SweepSettings(tmp_path / "sweep", workers=1, beneath=here())


def cell(version: str) -> SweepCell:
    """A cell of the toy."""
    return SweepCell(TOY, version, PACKAGE, version, "2026-01-01", mode="emulated")


def record_of(result: CellResult) -> Record:
    """The record of a result."""
    return from_json(gzip.decompress(result.record))


def test_a_cell_is_judged_in_its_environment_and_its_verdicts_are_used_again(settings: SweepSettings) -> None:
    first = judge_cell(cell("4.0"), PLAN, settings)
    assert (first.outcome, first.reason, first.ran, first.cached) == ("judged", "", 4, 0)
    record = record_of(first)
    assert record.variant.framework_version == "4.0"
    assert record.variant.packages[PACKAGE] == "4.0"
    assert (record.status, record.selection) == ("partial", " ".join(PLAN.selection))
    verdicts = {each.test: each.outcome for each in record.verdicts}
    assert {each for name, each in verdicts.items() if name.startswith(SKIP)} == {Outcome.FAIL}
    second = judge_cell(cell("4.0"), PLAN, settings)
    assert (second.outcome, second.ran, second.cached) == ("judged", 0, 4)
    assert {each.test: each.outcome for each in record_of(second).verdicts} == verdicts
    assert not [*Path(tempfile.gettempdir()).glob(f"conformance-{settings.sweep}-*")]


def test_a_framework_that_cannot_be_imported_or_installed_has_a_reason(settings: SweepSettings) -> None:
    broken = judge_cell(cell("7.0"), PLAN, settings)
    assert broken.outcome == "import failed"
    assert "ImportError: cannot load <path>" in broken.reason
    assert judge_cell(cell("8.0"), PLAN, settings).outcome == "no solution"


# ---------------------------------------------------------------- how a suite may end


@pytest.fixture
def run(tmp_path: Path, settings: SweepSettings) -> CellRun:
    """A cell before its suite runs."""
    return CellRun(request_of(cell("4.0"), PLAN, settings, None), tmp_path, Path("python"))


@pytest.mark.parametrize(
    ("ended", "outcome", "reason"),
    [
        (Finished(None, "..."), OUT_OF_TIME, "the suite took more than 1800 s, with 0 verdicts until then"),
        (Finished(-signal.SIGSEGV, "x\nlast\n"), "crash", "pytest ended with SIGSEGV: last"),
        (Finished(2, "no such device"), "crash", "pytest ended with status 2: no such device"),
        (Finished(5, "no tests ran"), "crash", "pytest ended with status 5: no tests ran"),
        (Finished(0, "3 passed"), "crash", "pytest ended with status 0: 3 passed"),
    ],
)
def test_a_suite_without_a_record_has_a_reason(
    run: CellRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Finished, outcome: str, reason: str
) -> None:
    monkeypatch.setattr(supervision, "run", lambda *_: ended)
    monkeypatch.setattr(cell_process, "repeat", lambda *_: None)
    with pytest.raises(CellNotJudged) as refused:
        run._run([], VerdictCache(tmp_path / "x.json.gz"))
    assert (refused.value.result.outcome, refused.value.result.reason) == (outcome, reason)
    assert refused.value.result.log == ended.output


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (
            2,
            "warning\nframework 'x' cannot be imported (/opt/x/y: no)\n",
            "framework 'x' cannot be imported (<path>: no)",
        ),
        (-signal.SIGILL, "", "the import ended by SIGILL"),
        (None, "", "the import took more than 300 s"),
    ],
)
def test_an_import_that_fails_has_a_reason(
    run: CellRun, monkeypatch: pytest.MonkeyPatch, status: int | None, output: str, reason: str
) -> None:
    monkeypatch.setattr(supervision, "run", lambda *_: Finished(status, output))
    with pytest.raises(CellNotJudged) as refused:
        run.judge()
    assert (refused.value.result.outcome, refused.value.result.reason) == ("import failed", reason)


@pytest.mark.parametrize(
    ("packages", "reason"),
    [
        ({PACKAGE: "4.1"}, "the framework: got 4.1, want 4.0"),
        ({}, "the framework: got none, want 4.0"),
        ({PACKAGE: "4.0+cpu"}, ""),
    ],
)
def test_the_installed_version_is_compared(run: CellRun, packages: dict[str, str], reason: str) -> None:
    if not reason:
        run._check_version(packages)
        return
    with pytest.raises(CellNotJudged) as refused:
        run._check_version(packages)
    assert (refused.value.result.outcome, refused.value.result.reason) == ("wrong version", reason)


def test_the_suite_gets_the_settings_of_tox_and_none_of_an_engine(
    run: CellRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    given = run._variables()
    assert {"RAY_JOB_ID", "PYTHONPATH"}.isdisjoint(given)
    assert (given["OMP_NUM_THREADS"], given["PYTHONHASHSEED"], given["CUDA_VISIBLE_DEVICES"]) == ("1", "0", "3")
    assert Path(given["TMPDIR"]).parent == run.folder


def test_an_environment_that_cannot_be_made_is_a_failed_installation(settings: SweepSettings, tmp_path: Path) -> None:
    result = judge(request_of(cell("9.0"), PLAN, settings, Lock((f"{PACKAGE}==9.0",), {})), tmp_path)
    assert result.outcome == "install failed"
    assert f"{PACKAGE}==9.0" in result.reason
