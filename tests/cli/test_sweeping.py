"""`conformance sweep`: its list of cells, cells by name, exit statuses, and one line for what is wrong."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.cli.main import main
from conformance.cli.versions import sweeping
from conformance.sweep import bisection
from conformance.sweep.cell import CellRequest, CellResult
from results.record.files import packed
from results.record.reading import load, to_json
from tests.support.suite_runs import refused
from tests.support.wheels import PACKAGE, TOY, only_index

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
        self.jobs, self._due = jobs, list[CellRequest]()

    def submit(self, request: CellRequest) -> None:
        self._due.append(request)

    def next(self) -> tuple[CellRequest, CellResult | str]:
        request = self._due.pop()
        outcome = self.outcomes.get(str(request.cell.version), "judged")
        return request, CellResult(outcome, "" if outcome == "judged" else "it did not")

    def close(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with only_index(tmp_path_factory.mktemp("wheels"), "1.0", "2.0", "3.0"):
        yield


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of a toy's versions, of which 9.0 does not exist; pip and uv know the wheels alone."""
    monkeypatch.setattr(sweeping, "LocalEngine", SureEngine)
    (tmp_path / "toys.toml").write_text(PLAN, encoding="utf-8")
    return tmp_path / "toys.toml"


def sweep(plan: Path, *words: str) -> list[str]:
    """The words of a sweep."""
    output = [] if any(word.startswith("--output") for word in words) else [f"--output={plan.parent / 'sweep'}"]
    return ["sweep", str(plan), *output, *words]


def test_sweep_plan_lists_cells_and_runs_none(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"--only={NAME}-{version}.0-cpu-emulated" for version in (2, 9, 2)]
    assert main(sweep(plan, "--plan", "--engine=ray", *only)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{NAME}-2.0-cpu-emulated\t\tdue",
        f"{NAME}-9.0-cpu-emulated\t\tno solution: no index has {PACKAGE} 9.0",
    ]
    assert not (plan.parent / "sweep").exists()


def test_sweep_reports_cells_and_says_whether_one_failed(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SureEngine, "outcomes", {"2.0": "out of time"})
    assert main(sweep(plan)) == 1
    output = capsys.readouterr().out
    assert f"{NAME}-2.0-cpu-emulated: out of time (it did not)" in output
    assert f"{NAME}-9.0-cpu-emulated: no solution (no index has {PACKAGE} 9.0)" in output
    assert "2 judged · 1 out of time · 1 no solution" in output
    assert main(sweep(plan, f"--only={NAME}-1.0-cpu-emulated")) == 0
    monkeypatch.setattr(SureEngine, "outcomes", {})
    assert main(sweep(plan)) == 0
    document = json.loads((plan.parent / "sweep" / "outcomes.json").read_bytes())
    assert [cell["outcome"] for cell in document["cells"]] == ["judged", "judged", "judged", "no solution"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--only", "x"], "no cell 'x': --plan lists them"),
        (["--engine=ray", "--reserve", "x"], "got 'x', want NAME=VALUE"),
        (["--reserve", "gpus=1"], "--reserve is for --engine ray or --engine slurm; leave it out"),
        (["--engine=ray", "--reserve", "gpus=all"], "got 'gpus=all', want a number above 0 as VALUE"),
        (["--engine=ray"], "ray is not installed: pip install ray"),
        (["--engine=slurm"], "submitit is not installed: pip install submitit"),
        (["--output=/dev/null/x"], "/dev/null/x: cannot be written"),
    ],
)
def test_sweep_refuses_in_one_line(
    plan: Path, words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "find_spec", lambda _: None)
    assert problem in refused(capsys, *sweep(plan, *words))


def test_sweep_suite_packages_elsewhere_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_SUITE_PACKAGES", "/nowhere")
    assert "/nowhere has no pytest; name site-packages" in refused(capsys, *sweep(plan))


def test_compare_two_versions_judges_each_once(
    plan: Path, tmp_path: Path, complete: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = []

    def judge(request: CellRequest) -> CellResult:
        judged.append(request.cell.version)
        record = replace(load(complete), selection="--tests=core", seed=0)
        variant = replace(record.variant, framework_version=request.cell.version)
        return CellResult("judged", record=packed(Path("r.json.gz"), to_json(replace(record, variant=variant))))

    assert plan.exists()
    monkeypatch.setattr(bisection, "run_cell", judge)
    monkeypatch.setattr(sweeping, "FOLDER", tmp_path / "sweeps")
    compare = ["compare", f"{TOY}==1.0", f"{TOY}==2.0", "--mode", "emulated", "--fail-on", "never"]
    for _ in range(2):
        assert main(compare) == 0
        assert "torch eager cpu: 1.0 → 2.0: " in capsys.readouterr().out
    assert judged == ["1.0", "2.0"]
    assert main(["compare", f"{TOY}==9.0", str(complete)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"conformance: {TOY}==9.0 cannot be judged (no solution: no index has {PACKAGE} 9.0); choose another version"
    )
