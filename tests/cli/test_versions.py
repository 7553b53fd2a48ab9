"""`conformance bisect`, `sweep` and `compare` of versions of a toy framework, and `judge-model`."""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.cli.bisect import select
from conformance.models import judging
from conformance.sweep import bisection, plan
from conformance.sweep.cell import CellRequest, CellResult, LocalEngine, LostCell
from conformance.sweep.plan import SweepCell
from results.record.files import compress_content
from results.record.model import Outcome
from results.record.reading import Journal, load, to_json
from tests.support.recorded import CLAUSE as RECORDED
from tests.support.recorded import fill_journal, header, verdict
from tests.support.suite_runs import ROOT, call_command, run_refused
from tests.support.wheels import PACKAGE, TOY, only_index, write_wheel

CLAUSE = "scaling.skip-is-atomic"
TEST = f"{CLAUSE}/test_skipped_update_keeps_average"
OTHER = f"{CLAUSE}/test_overflow_can_be_discarded"
BISECT = ("bisect", TOY, "--mode", "emulated", "--clause", TEST)
NAME = TOY.replace(":", ".")
PLAN = f"""
selection = "--tests quick"
[[cells]]
framework = "{TOY}"
versions = ["1.0", "2.0", "3.0", "9.0"]
modes = ["emulated"]
"""
FAILED: dict[str, CellResult] = {}
"""Results of the versions that are not judged."""
Verdicts = Callable[[SweepCell], Outcome | str]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with wheels of the toy, the only index of pip and uv."""
    folder = tmp_path_factory.mktemp("index")
    with only_index(folder, "1.0", "2.0", "3.0", "4.0", "4.1rc1", "5.0"):
        yield folder


@pytest.fixture
def judged_cells(releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdicts], list[str]]:
    """Sets the outcome of the test in each cell, or why there is no record; returns the versions that are judged."""
    assert releases.is_dir()
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    record = load(fill_journal(Journal.create(tmp_path / "r.json", header()), 1).finish())
    record = replace(record, clauses={**record.clauses, CLAUSE: record.clauses[RECORDED]})

    def use(outcome: Verdicts) -> list[str]:
        versions: list[str] = []

        def judge(request: CellRequest) -> CellResult:
            cell, selection = request.cell, request.plan.selection
            assert selection == ("conformance/suites/scaling/test_scaling_skip.py::" + TEST.partition("/")[2],)
            versions.append(cell.version)
            result = outcome(cell)
            if not isinstance(result, Outcome):
                if result == "lost":
                    raise LostCell("the cell's process ended with status -9")
                return CellResult(*result.split(": ", 1))
            verdicts = (
                replace(verdict(TEST, result), clause=CLAUSE),
                replace(verdict(OTHER, Outcome.KNOWN), clause=CLAUSE),
            )
            variant = replace(record.variant, packages={PACKAGE: cell.version, "other": "1"})
            run = replace(record, verdicts=verdicts, traces=(), tensors=(), measurements=(), observations=())
            run = replace(run, variant=variant, selection=selection[0], seed=0)
            return CellResult("judged", record=compress_content(Path("r.json.gz"), to_json(run)))

        monkeypatch.setattr("conformance.sweep.bisection.run_cell", judge)
        return versions

    return use


def bisect(*arguments: str) -> int:
    return main([*BISECT, *arguments])


def fail_from_4(cell: SweepCell) -> Outcome:
    return Outcome.FAIL if cell.version[0] in "45" else Outcome.PASS


def test_bisect_names_the_first_bad_release_and_judges_both_again(
    judged_cells: Callable[[Verdicts], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = judged_cells(fail_from_4)
    assert bisect("--good", "1.0", "--bad", "5.0", "--output", str(tmp_path / "f")) == 0
    assert versions == ["1.0", "5.0", "3.0", "4.0", "4.0", "3.0"]
    out, errors = capsys.readouterr()
    assert errors.splitlines()[0] == "5 releases, at most 3 of them to judge next to the ends"
    lines = out.splitlines()
    assert lines[:2] == [f"last good  {PACKAGE} 3.0", f"first bad  {PACKAGE} 4.0"]
    assert f"{TEST}: pass -> fail [scale-inf] line line" in lines
    assert f"guilty: {PACKAGE}; {PACKAGE} is the only package that computes and has another version" in lines
    assert any(line.startswith("repeat:  ") and line.endswith("&& pytest …") for line in lines)
    assert f"compare: conformance compare {tmp_path}/f/records/" in out
    report = (tmp_path / "f" / "report.md").read_text()
    assert report.startswith(f"# {PACKAGE} fails since 4.0: ")
    for text in (f"- good: {PACKAGE} 3.0", f"`{CLAUSE}` (MUST)", "## What was measured", f"| {PACKAGE} | 3.0 | 4.0 |"):
        assert text in report


def test_bisect_good_is_newer_finds_the_fix(
    judged_cells: Callable[[Verdicts], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    judged_cells(lambda cell: Outcome.PASS if cell.version[0] in "345" else Outcome.KNOWN)
    assert bisect("--good", "5.0", "--bad", "1.0") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [f"last bad   {PACKAGE} 2.0", f"first good {PACKAGE} 3.0"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("import failed: no module named x", "import failed: no module named x"),
        ("lost", "crash: the cell's process ended with status -9"),
        (Outcome.UNSTABLE, f"unstable: {TEST}"),
        (Outcome.UNSUPPORTED, "not judged: its tests are unsupported"),
    ],
)
def test_bisect_release_that_cannot_be_judged_gives_a_range(
    judged_cells: Callable[[Verdicts], list[str]],
    capsys: pytest.CaptureFixture[str],
    result: Outcome | str,
    reason: str,
) -> None:
    judged_cells(lambda cell: result if cell.version in ("3.0", "4.0") else fail_from_4(cell))
    assert bisect("--good", "1.0", "--bad", "5.0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"last good  {PACKAGE} 2.0", f"first bad  {PACKAGE} 5.0"]
    assert lines[2] == f"or one of 3.0 ({reason}), 4.0 ({reason}), which cannot be judged"


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (lambda _: Outcome.PASS, "5.0 gives 1 known · 1 pass; choose other ends or another clause"),
        (lambda cell: Outcome.PASS if cell.version == "5.0" else Outcome.FAIL, "exchange --good and --bad"),
        (
            lambda cell: "import failed: x" if cell.version == "5.0" else Outcome.PASS,
            "5.0 cannot be judged (import failed: x)",
        ),
    ],
)
def test_bisect_ends_that_agree_are_refused(
    judged_cells: Callable[[Verdicts], list[str]], capsys: pytest.CaptureFixture[str], outcome: Verdicts, message: str
) -> None:
    judged_cells(outcome)
    assert bisect("--good", "1.0", "--bad", "5.0") == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert message in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--good 1.x --bad 5.0", "1.x"),
        ("--good 2.0 --bad 2.0.0", "--good and --bad are the same version, 2.0; name an older and a newer"),
        (f"--good 1.0 --bad 5.0 --with {PACKAGE}==2.0", f"got {PACKAGE} as a companion, and it is"),
        ("--good 1.0 --bad 4.7", "no index has it; the next one is 5.0"),
        ("--good 1.0 --bad 5.0 --with numpy", "got 'numpy', want NAME==VERSION"),
        ("--good 1.0 --bad 5.0 --package unknown-toy", "unknown-toy: its releases cannot be listed"),
    ],
)
@pytest.mark.usefixtures("releases")
def test_bisect_refuses_in_one_line(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in run_refused(capsys, *BISECT, *options.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--clause {} --mode eagr", "got mode 'eagr', want a mode of torch, such as eager, compile"),
        ("--clause {} --device cpuu", "got device 'cpuu', want cpu, auto or an accelerator: cuda, gpu"),
        ("--clause {} --with torch==2.5", "got torch as a companion, and it is the package that varies; want another"),
        (
            "--clause {} --with 'numpy==of its time'",
            '--with: "of its time" is for the framework while another --package varies',
        ),
        ("--clause scaling.nothing", "scaling.nothing"),
        ("--clause scaling.skip-is-atomic/test_nothing", "test_nothing"),
        ("", "name either --clause ID or --run COMMAND"),
        ("--run ''", '--run needs a command, such as "python train.py"'),
        ("--run 'python \"train.py'", "--run: No closing quotation"),
    ],
)
def test_bisect_checks_names_before_an_index_is_read(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "releases", lambda *_: pytest.fail("an index is read"))
    argv = ["bisect", "torch", "--good", "2.6.0", "--bad", "2.13.0", *shlex.split(options.format(CLAUSE))]
    assert message in run_refused(capsys, *argv)


def test_select_clause_has_all_its_tests() -> None:
    clause, nodes = select("accumulation.keeps-precision")
    assert clause.id == "accumulation.keeps-precision"
    assert all(node.startswith("conformance/suites/accumulation/") and "::test_" in node for node in nodes)
    node = "conformance/suites/scaling/test_scaling_skip.py::test_skipped_update_is_atomic[inf-sgd]"
    assert select(node)[1] == (node,)
    assert select("scaling.skip-is-atomic/test_skipped_update_is_atomic[inf-sgd]")[1] == (node,)


@pytest.fixture
def toy_plan(releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of a toy's versions, of which 9.0 does not exist; pip and uv know the wheels alone."""
    assert releases.is_dir()
    monkeypatch.setattr(
        "conformance.cli.sweep.LocalEngine",
        lambda jobs: LocalEngine(jobs, lambda request, _: FAILED.get(request.cell.version, CellResult("judged"))),
    )
    (tmp_path / "toys.toml").write_text(PLAN, encoding="utf-8")
    return tmp_path / "toys.toml"


def sweep_arguments(toy_plan: Path, *arguments: str) -> list[str]:
    return ["sweep", str(toy_plan), f"--output={toy_plan.parent / 'sweep'}", *arguments]


def test_sweep_plan_lists_cells_and_runs_none(toy_plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"--only={NAME}-{version}.0-cpu-emulated" for version in (2, 9, 2)]
    assert main(sweep_arguments(toy_plan, "--plan", "--engine=ray", *only)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{NAME}-2.0-cpu-emulated\t\tdue",
        f"{NAME}-9.0-cpu-emulated\t\tno solution: no index has {PACKAGE} 9.0",
    ]
    assert not (toy_plan.parent / "sweep").exists()


def test_sweep_reports_cells_and_says_whether_one_failed(
    toy_plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAILED, "2.0", CellResult("out of time", "it did not"))
    assert main(sweep_arguments(toy_plan)) == 1
    output = capsys.readouterr().out
    assert f"{NAME}-2.0-cpu-emulated: out of time (it did not)" in output
    assert f"{NAME}-9.0-cpu-emulated: no solution (no index has {PACKAGE} 9.0)" in output
    assert "2 judged · 1 out of time · 1 no solution" in output
    assert main(sweep_arguments(toy_plan, f"--only={NAME}-1.0-cpu-emulated")) == 0
    monkeypatch.delitem(FAILED, "2.0")
    assert main(sweep_arguments(toy_plan)) == 0
    document = json.loads((toy_plan.parent / "sweep" / "outcomes.json").read_bytes())
    assert [cell["outcome"] for cell in document["cells"]] == ["judged", "judged", "judged", "no solution"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "x"], "no cell 'x': --plan lists them"),
        (["--engine=ray", "--reserve", "x"], "got 'x', want NAME=VALUE"),
        (["--reserve", "gpus=1"], "--reserve is for --engine ray or --engine slurm; leave it out"),
        (["--engine=ray", "--reserve", "gpus=all"], "got 'gpus=all', want a number above 0 as VALUE"),
        (["--engine=ray"], "ray is not installed: pip install ray"),
        (["--engine=slurm"], "submitit is not installed: pip install submitit"),
        (["--output=/dev/null/x"], "/dev/null/x: cannot be written"),
        ([], "/nowhere has no pytest; name site-packages"),
    ],
)
def test_sweep_refuses_in_one_line(
    toy_plan: Path,
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conformance.cli.sweep.find_spec", lambda _: None)
    if not arguments:
        monkeypatch.setenv("CONFORMANCE_SUITE_PACKAGES", "/nowhere")
    assert problem in run_refused(capsys, *sweep_arguments(toy_plan, *arguments))


def test_compare_two_versions_judges_each_once(
    toy_plan: Path, tmp_path: Path, complete: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = []

    def judge(request: CellRequest) -> CellResult:
        judged.append(request.cell.version)
        record = replace(load(complete), selection="--tests=core", seed=0)
        variant = replace(record.variant, framework_version=request.cell.version)
        return CellResult(
            "judged", record=compress_content(Path("r.json.gz"), to_json(replace(record, variant=variant)))
        )

    assert toy_plan.exists()
    monkeypatch.setattr(bisection, "run_cell", judge)
    monkeypatch.setattr("conformance.cli.sweep.FOLDER", tmp_path / "sweeps")
    compare = ["compare", f"{TOY}==1.0", f"{TOY}==2.0", "--mode", "emulated", "--fail-on", "never"]
    for _ in range(2):
        assert main(compare) == 0
        assert "torch eager cpu: 1.0 → 2.0: " in capsys.readouterr().out
    assert judged == ["1.0", "2.0"]
    assert main(["compare", f"{TOY}==9.0", str(complete)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"conformance: {TOY}==9.0 cannot be judged (no solution: no index has {PACKAGE} 9.0); choose another version"
    )


@pytest.mark.slow
def test_bisect_real_releases_are_installed_and_judged(
    releases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_wheel(releases, PACKAGE, "3.5", source="raise ImportError('no such symbol')")
    (releases / "conformance_toy-3.0-py3-none-any.whl").unlink()
    plan.releases.cache_clear()
    options = f"--good 2.0 --bad 4.0 --output {tmp_path / 'f'}"
    assert bisect(*options.split()) == 0
    out = capsys.readouterr().out
    assert f"last good  {PACKAGE} 2.0\nfirst bad  {PACKAGE} 4.0\nor one of 3.5 (import failed: " in out
    assert "(ImportError: no such symbol)" in out
    assert f"{TEST}: pass -> fail " in out
    assert f"guilty: {PACKAGE}; " in out


EQUAL, RESUME = "accumulation.equals-full-batch", "resume.bit-identical"
IGNORED = "forward in the model's own file calls cross_entropy itself, and ignores the count"


@dataclass(frozen=True)
class StubCheck:
    clause: str
    outcome: str = "pass"
    got: str = "4"
    want: str = "1"
    cause: str = ""
    case: str = ""


def names() -> list[str]:
    classes = ("AForMaskedLM", "BForMaskedLM", "CForMaskedLM", "ClvpForCausalLM", "CrashForCTC", "DForCTC", "EForCTC")
    return [f"transformers:{name}" for name in (*classes, "SlowForCTC")]


def checks(model: str, formats: list[str]) -> Iterator[StubCheck]:
    name = model.partition(":")[2]
    if name.startswith("Crash"):
        os._exit(3)
    if name.startswith("Slow"):
        time.sleep(60.0)
    if name.endswith("CTC"):
        raise ValueError(f"no loss: ValueError: {len(name)} is not {12 + len(formats)}")
    yield StubCheck(EQUAL, "fail" if name[0] in "AB" else "pass", cause=IGNORED if name[0] in "AB" else "", case="k")
    yield StubCheck(EQUAL, "not judged", "why", "", case="b")
    yield StubCheck(RESUME, "fail" if name.startswith("C") else "pass")


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0"}
    monkeypatch.setattr(judging, "JUDGE", "tests.cli.test_versions")
    monkeypatch.setattr(judging.machine, "packages", lambda: versions)


def test_judge_model_of_a_library_writes_a_record_and_a_table(tmp_path: Path) -> None:
    path, output = tmp_path / "heads.json.gz", tmp_path / "heads.md"
    completed = call_command(
        "judge-model", "--all", "transformers", "--record", path, "--output", output, "--limit", "6"
    )
    assert completed.status == 1, completed.lines
    record, text = load(path), output.read_text("utf-8")
    verdicts = {verdict.test: verdict for verdict in record.verdicts}
    failure = verdicts[f"{EQUAL}/transformers:AForMaskedLM[k]"]
    assert (failure.outcome, failure.signature, failure.finding) == (Outcome.KNOWN, IGNORED, "head-ignores-the-count")
    resumed = (verdicts[f"{RESUME}/transformers:{name}"] for name in ("CForMaskedLM", "ClvpForCausalLM"))
    assert [(verdict.outcome, verdict.finding) for verdict in resumed] == [
        (Outcome.FAIL, ""),
        (Outcome.KNOWN, "checkpointing-of-clvp-is-off"),
    ]
    untrained = {v.case.partition(":")[2]: v.reason for v in record.verdicts if v.reason not in ("", "why")}
    assert untrained.keys() == {"CrashForCTC", "DForCTC", "EForCTC", "SlowForCTC"}
    assert untrained["CrashForCTC"] == "its process ended"
    assert untrained["SlowForCTC"] == "took more than 6 s"
    assert text.startswith("# Heads of transformers 5.24.0\n\n4 of 8 classes were trained, 4 were not (torch 2.13.0, ")
    assert f"| `{EQUAL}` | 2 | 2 | 0 |" in text
    assert f"- `{EQUAL}`: {IGNORED} (2 classes, head-ignores-the-count): AForMaskedLM, BForMaskedLM" in text
    assert "- no loss: ValueError: N is not N (2 classes): DForCTC, EForCTC" in text
    assert text.splitlines()[-1] == "1 failed, 3 known, 4 passed, 8 not judged"


def test_judge_model_of_one_model_shows_its_requirement_and_source(tmp_path: Path) -> None:
    completed = call_command("judge-model", "transformers:CForMaskedLM", "--record", tmp_path / "one.json")
    assert completed.status == 1, completed.lines
    clause = load(tmp_path / "one.json").clauses[RESUME]
    assert f"  FAIL       {RESUME}: got 4, want 1" in completed.lines
    assert f"  abstain    {EQUAL}[b]: why" in completed.lines
    assert f"{RESUME} (MUST): {clause.requirement}" in completed.lines
    assert f"  source: {clause.source}" in completed.lines
    assert completed.lines[-1] == "1 failed, 1 passed, 1 not judged"


def test_compare_of_committed_records_names_the_classes_that_changed() -> None:
    old, new = (ROOT / f"results/heads/transformers-{version}.json.gz" for version in ("5.17.0", "5.24.0"))
    assert "1 failed" not in "\n".join(judging.table(load(new)))
    assert "715 of 986 classes were trained" in "\n".join(judging.table(load(new)))
    completed = call_command("compare", old, new)
    assert completed.status == 1
    assert f"newly failing  {RESUME}" in completed.output
    assert "transformers:AriaTextForCausalLM" in completed.output


def test_clauses_of_models_include_those_of_no_suite() -> None:
    assert judging.clauses()["accumulation.normalised-once"].level == "MUST"
    assert judging.clauses()["accumulation.switch-decides"].level == "SHOULD"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a MODEL, or give --all transformers"),
        (["x:y", "--all", "transformers"], "name a MODEL, or give --all transformers"),
        (["x:y", "--only", "Bert"], "--only and --output are for --all"),
        (["nothing"], "got 'nothing', want transformers:CLASS or PACKAGE.MODULE:FACTORY"),
        (["--all", "transformers", "--only", "Nope"], "no class of transformers 5.24.0 has Nope in its name"),
        (["transformers:DForCTC"], "transformers:DForCTC: no loss: ValueError: 7 is not 14"),
    ],
)
def test_judge_model_refuses_in_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in run_refused(capsys, "judge-model", *argv)


def test_judge_model_without_a_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging.machine, "packages", lambda: {"torch": "2.13.0"})
    assert "pip install transformers accelerate" in run_refused(capsys, "judge-model", "--all", "transformers")
    monkeypatch.setattr(judging.machine, "packages", dict)
    assert "torch not installed: pip install torch" in run_refused(capsys, "judge-model", "a:b")
