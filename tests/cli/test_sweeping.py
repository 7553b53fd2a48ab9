"""`conformance sweep`: forecast, matrix for CI, cells by name, exit statuses, and one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.cli.versions import sweeping
from conformance.runner.selection import Selection
from conformance.sweep import forecast
from conformance.sweep.engines import local
from conformance.sweep.requests import CellRequest, CellResult
from tests.support.suite_runs import refused
from tools.benchmarks.sweeps.wheels import PACKAGE, TOY, here, offline, write_wheel

NAME = TOY.replace(":", ".")
PLAN = f"""
selection = "--tests quick"
[[cells]]
framework = "{TOY}"
versions = ["1.0", "2.0", "3.0", "9.0"]
modes = ["emulated"]
"""


class SureEngine:
    """Every cell ends at once, in the way that its version says."""

    outcomes: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, jobs: int) -> None:
        self.jobs, self._due = jobs, list[tuple[str, CellRequest]]()

    def submit(self, key: str, request: CellRequest) -> None:
        self._due.append((key, request))

    def next(self) -> tuple[str, CellResult | str]:
        key, request = self._due.pop()
        outcome = self.outcomes.get(str(request.cell.version), "judged")
        return key, CellResult(outcome, "" if outcome == "judged" else "it did not", ran=3)

    def close(self) -> None:
        pass


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of a toy's versions, of which 9.0 does not exist; pip and uv know the wheels alone."""
    for version in ("1.0", "2.0", "3.0"):
        write_wheel(tmp_path / "wheels", PACKAGE, version)
    for name, value in offline(tmp_path / "wheels").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(local, "LocalEngine", SureEngine)
    (tmp_path / "toys.toml").write_text(PLAN, encoding="utf-8")
    return tmp_path / "toys.toml"


def sweep(plan: Path, *words: str) -> list[str]:
    """The words of a sweep."""
    folder = [] if any(word.startswith("--folder") for word in words) else [f"--folder={plan.parent / 'sweep'}"]
    return ["sweep", str(plan), f"--suite-from={here()}", *folder, *words]


def swept(plan: Path, *words: str) -> int:
    """The exit status of a sweep."""
    return main(sweep(plan, *words))


def test_the_forecast_lists_cells_and_runs_none(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    took = {"a.b/test_c": 300.0, "a.b/test_c[0]": 120.0, "a.b/test_c[1]": 480.0}
    monkeypatch.setattr(forecast, "durations", lambda *_: took)
    monkeypatch.setattr(forecast, "read", lambda _: Selection(quick={"a.b/test_c": ["0"]}))
    only = [f"--only={NAME}-{version}.0-cpu-emulated" for version in (2, 9, 2)]
    assert swept(plan, "--plan", *only) == 0
    output = capsys.readouterr().out
    assert f"{NAME}-2.0-cpu-emulated  unknown   0 MiB     1.0 min" in output
    assert f"not judged: no index has {PACKAGE} 9.0" in output
    assert "1 of 2 cells can be judged" in output
    assert not (plan.parent / "sweep" / "journal.jsonl").exists()


def test_the_matrix_has_the_cells_that_can_be_judged(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swept(plan, "--plan", "json") == 0
    matrix = json.loads(capsys.readouterr().out)
    assert [each["cell"] for each in matrix["include"]] == [f"{NAME}-{v}.0-cpu-emulated" for v in (1, 2, 3)]
    assert {each["version"] for each in matrix["include"]} == {"1.0", "2.0", "3.0"}
    assert swept(plan, "--extremes", "--plan", "json") == 0
    ends = json.loads(capsys.readouterr().out)
    assert [each["version"] for each in ends["include"]] == ["1.0", "3.0"]


def test_each_cell_is_reported_and_the_status_says_whether_one_failed(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SureEngine, "outcomes", {"2.0": "timeout"})
    assert swept(plan) == 1
    output = capsys.readouterr().out
    assert f"{NAME}-2.0-cpu-emulated: timeout (it did not)" in output
    assert f"{NAME}-9.0-cpu-emulated: no solution (no index has {PACKAGE} 9.0)" in output
    assert "2 judged · 1 timeout · 1 no solution" in output
    assert swept(plan, "--extremes") == 0
    monkeypatch.setattr(SureEngine, "outcomes", {})
    assert swept(plan, "--retry") == 0
    document = json.loads((plan.parent / "sweep" / "outcomes.json").read_bytes())
    assert [each["outcome"] for each in document["cells"]] == ["judged", "judged", "judged", "no solution"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--only", "x"], "no cell 'x': --plan lists them"),
        (["--reserve", "x"], "got 'x', want NAME=VALUE"),
        (["--reserve", "x", "--plan"], "got 'x', want NAME=VALUE"),
        (["--reserve", "gpus=1"], "--reserve is for --engine ray or --engine slurm, got --engine local; leave it out"),
        (["--engine=ray", "--reserve", "gpus=all"], "got 'gpus=all', want a number above 0 as VALUE"),
        (["--address=head:6379"], "--address is for --engine ray, got --engine local; leave it out, or name the eng"),
        (["--engine=slurm", "--wait-for-nodes"], "--wait-for-nodes is for --engine ray, got --engine slurm"),
        (["--suite-from=locks"], "locks lacks allpairspy, autograd, click and"),
        (["--plan", "plan.toml"], "write --plan after the file"),
        (["--suite-from=/nowhere"], "does not exist"),
        (["--cache-size=nan"], "got nan, want a finite number"),
        (["--cache-size=1e400"], "got 1e400, want a finite number"),
        (["--folder=/dev/null/x", "--only", f"{NAME}-9.0-cpu-emulated"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line(
    plan: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(capsys, *sweep(plan, *words))


@pytest.mark.parametrize(("engine", "name", "library"), [("ray", "Ray", "ray"), ("slurm", "submitit", "submitit")])
def test_an_engine_that_is_not_installed_is_refused_before_anything_is_resolved(
    plan: Path,
    engine: str,
    name: str,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweeping, "find_spec", lambda _: None)
    refusal = refused(capsys, *sweep(plan, f"--engine={engine}"))
    assert f"{name} is not installed: pip install {library}" in refusal
    assert not (plan.parent / "sweep").exists()
    assert swept(plan, f"--engine={engine}", "--plan") == 0


def test_a_disk_that_is_too_small_is_refused(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    message = "0.0 GiB are free; make room, or set --cache-size or CONFORMANCE_CACHE"
    assert message in refused(capsys, *sweep(plan))
    assert not (plan.parent / "sweep" / "journal.jsonl").exists()
