"""The GitHub action: its scripts with small programs in place of tox and gh, and the content of its YAML."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from results.record.reading import Outcome, load, write
from results.show.table import digest as markdown
from tests.support.recorded import BASE, BOUND, change_verdict
from tests.support.suite_runs import ROOT, environment, hang_limit

ACTION = ROOT / ".github" / "actions" / "conformance"
WORKFLOW = ROOT / ".github" / "workflows" / "conformance.yml"
WORSE = change_verdict(BASE, 0, outcome=Outcome.FAIL)
WITHOUT_REPORT = f"""#!/bin/sh
[ "$3" != report ] || exec touch "$6"
exec {sys.executable} "$@"
"""
"""Python for the command, but for the report, which takes seconds."""

TOX = f"""#!{sys.executable}
import json, os, shutil, sys
chosen = {{name: value for name, value in os.environ.items() if name.endswith("_VERSION") or "CONFORMANCE" in name}}
with open(os.environ["FAKE_LOG"], "a") as log:
    log.write(json.dumps([sys.argv[1:], chosen]) + "\\n")
print("::error::from a framework", flush=True)
if "run" in sys.argv and os.environ.get("FAKE_RECORD"):
    os.makedirs("results/records", exist_ok=True)
    shutil.copy(os.environ["FAKE_RECORD"], "results/records/new.json")
sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
"""
"""`python -m tox`: writes a record as a run would, and logs its arguments and variables."""

GH = """#!/bin/sh
echo "$*" > "$FAKE_LOG"
cat > "$FAKE_COMMENTS"
[ -z "$FAKE_DENIED" ] || { echo "gh: Resource not accessible by integration" >&2; echo "(HTTP 403)" >&2; exit 1; }
"""
"""`gh`: keeps its arguments and the comment's text."""


@dataclass
class Runner:
    """A runner of GitHub Actions in a folder.

    Attributes:
        status, log: exit status and output of the last step.
        inputs: variables of every step.
    """

    folder: Path
    status: int = 0
    log: str = ""
    inputs: dict[str, str] = field(default_factory=dict)

    def step(self, script: str, **variables: str | Path) -> dict[str, str]:
        """Runs a script of the action; returns its outputs."""
        output = self.folder / "output"
        output.write_text("")
        changes = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "GITHUB_WORKSPACE": str(self.folder),
            "GITHUB_REPOSITORY": "owner/repo",
            "RUNNER_TEMP": str(self.folder),
            "FAKE_LOG": str(self.folder / "log"),
            "FAKE_COMMENTS": str(self.folder / "comments.json"),
            "SUITE": str(self.folder / "suite"),
            "OUT": str(self.folder / "out"),
            "PYTHON": sys.executable,
        }
        changes |= {name: str(value) for name, value in (self.inputs | variables).items()}
        completed = subprocess.run(
            ["bash", str(ACTION / script)],
            env=environment(**changes),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=hang_limit(),
            check=False,
        )
        self.status, self.log = completed.returncode, completed.stdout + completed.stderr
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def install(self, name: str, program: str) -> None:
        """Writes a program that is first on the path."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(program)
        path.chmod(0o755)

    @property
    def calls(self) -> list[Any]:
        """Arguments and variables of each call of tox."""
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    @property
    def summary(self) -> str:
        return (self.folder / "summary").read_text("utf-8")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    (tmp_path / "suite" / "results" / "records").mkdir(parents=True)
    (tmp_path / "log").touch()
    return Runner(tmp_path)


@pytest.fixture
def compared_runner(runner: Runner) -> Runner:
    (runner.folder / "out" / "records").mkdir(parents=True)
    (runner.folder / "base").mkdir()
    write(runner.folder / "out" / "records" / "new.json", WORSE)
    write(runner.folder / "base" / "old.json", BASE)
    runner.install("quick", WITHOUT_REPORT)
    runner.inputs = {"SUITE": str(ROOT), "PYTHON": "quick", "BASELINE": "base", "FAIL_ON": "failures"}
    return runner


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (("torch", "", "auto", "", ""), "conformance-torch-auto"),
        (("tf", "2.21.0", "cpu", "graph,xla", ""), "conformance-tf-2.21.0-cpu-graph-xla"),
        (("tf", "", "cpu", "", "mine"), "mine"),
        (("$(touch pwned)", "\nname=x", "`id`", "", ""), "conformance-touch-pwned"),
    ],
)
def test_prepare_makes_environment_and_name(runner: Runner, inputs: tuple[str, ...], name: str) -> None:
    runner.install("python", TOX)
    names = ("FRAMEWORK", "VERSION", "DEVICE", "MODES", "NAME")
    result = runner.step("prepare.sh", **dict(zip(names, inputs, strict=True)))
    assert runner.status == 0, runner.log
    assert result["name"] == name
    assert result["suite"] == str(ROOT)
    assert Path(result["folder"]).is_dir()
    assert ["-m", "tox", "run", "--notest", "-e", "report"] in [arguments for arguments, _ in runner.calls]
    assert not list(runner.folder.rglob("pwned"))


def run_judge(runner: Runner, **changes: str | Path) -> dict[str, str]:
    inputs = {"FRAMEWORK": "torch", "VERSION": "", "DEVICE": "auto", "MODES": "", "TESTS": "", "RECORDS": ""}
    return runner.step("judge.sh", **(inputs | changes))


def test_judge_passes_inputs_to_tox_and_gathers_the_new_record(runner: Runner) -> None:
    runner.install("python", TOX)
    records = runner.folder / "suite" / "results" / "records"
    write(records / "earlier.json", BASE)
    os.utime(records / "earlier.json", (1, 1))
    write(runner.folder / "record.json", WORSE)
    changes: dict[str, str | Path] = {"FAKE_RECORD": runner.folder / "record.json", "FAKE_STATUS": "1"}
    result = run_judge(runner, VERSION="2.14.0", DEVICE="cuda", MODES="eager,compile", TESTS="quick", **changes)
    assert (runner.status, result) == (0, {"run": "1"}), runner.log
    assert [path.name for path in (runner.folder / "out" / "records").iterdir()] == ["new.json"]
    ((arguments, variables),) = runner.calls
    assert arguments[:5] == ["-m", "tox", "run", "-e", "torch"]
    assert arguments[5:] == ["--", f"--junitxml={runner.folder}/out/junit.xml"]
    assert variables["TORCH_VERSION"] == "2.14.0"
    assert (variables["CONFORMANCE_DEVICE"], variables["CONFORMANCE_MODES"]) == ("cuda", "eager,compile")
    assert variables["CONFORMANCE_TESTS"] == "quick"


def test_judge_sets_no_empty_variable_and_stops_commands_of_the_framework(runner: Runner) -> None:
    runner.install("python", TOX)
    write(runner.folder / "record.json", BASE)
    assert run_judge(runner, FAKE_RECORD=runner.folder / "record.json") == {"run": "0"}
    ((_, variables),) = runner.calls
    assert not {"TORCH_VERSION", "CONFORMANCE_MODES", "CONFORMANCE_TESTS"} & variables.keys()
    assert re.fullmatch(r"::stop-commands::([0-9a-f]{32})\n::error::from a framework\n::\1::\n", runner.log), runner.log


@pytest.mark.parametrize("status", ["0", "1", "2", "127"])
def test_judge_without_a_record_is_status_2(runner: Runner, status: str) -> None:
    runner.install("python", TOX)
    assert run_judge(runner, FAKE_STATUS=status) == {"run": "2"}


@pytest.mark.parametrize("name", ["FRAMEWORK", "VERSION", "DEVICE", "MODES", "TESTS"])
def test_judge_of_a_shell_command_as_a_name_is_refused(runner: Runner, name: str) -> None:
    runner.install("python", TOX)
    for text in ("a; touch pwned", "$(touch pwned)", "-x\ny", "`touch pwned`", "A=1 b"):
        run_judge(runner, **{name: text})
        assert runner.status == 2
        assert runner.log.startswith("::error::conformance: ")
        assert runner.log.count("\n") == 1
    assert runner.calls == []
    assert not list(runner.folder.rglob("pwned"))


def test_judge_gathers_records_without_a_run(runner: Runner) -> None:
    runner.install("python", TOX)
    (runner.folder / "given").mkdir()
    write(runner.folder / "given" / "a.json", BASE)
    assert run_judge(runner, FRAMEWORK="", RECORDS=runner.folder / "given") == {"run": "0"}
    assert (runner.folder / "out" / "records" / "a.json").is_file()
    assert runner.calls == []
    run_judge(runner, FRAMEWORK="", RECORDS=runner.folder / "nowhere")
    assert (runner.status, runner.log) == (2, "::error::conformance: the records are not there\n")


def test_tell_worse_run_writes_all_pages(compared_runner: Runner) -> None:
    assert compared_runner.step("tell.sh", PYTHON=sys.executable) == {"comparison": "1"}, compared_runner.log
    out = compared_runner.folder / "out"
    assert {path.name for path in out.iterdir()} == {"comparison.md", "records", "report.html", "summary.md"}
    assert (out / "summary.md").read_text("utf-8") == markdown([WORSE])
    assert compared_runner.summary.index("(1 of 3 tests)") < compared_runner.summary.index("something is worse")


def test_tell_same_run_beside_other_series_is_no_worse(compared_runner: Runner) -> None:
    write(compared_runner.folder / "out" / "records" / "new.json", BASE)
    other = replace(BASE, series=replace(BASE.series, framework="tf"))
    write(compared_runner.folder / "base" / "tf.json", other)
    assert compared_runner.step("tell.sh") == {"comparison": "0"}, compared_runner.log
    assert "nothing is worse" in compared_runner.summary


def test_tell_drift_counts_where_it_was_asked_for(compared_runner: Runner) -> None:
    near, far = (change_verdict(BASE, 0, checks=(replace(BOUND, measured=error),)) for error in (0.1, 0.9))
    write(compared_runner.folder / "base" / "old.json", near)
    write(compared_runner.folder / "out" / "records" / "new.json", far)
    assert compared_runner.step("tell.sh", FAIL_ON="drift") == {"comparison": "1"}, compared_runner.log
    assert "nothing is worse, 1 test drifted" in compared_runner.summary


@pytest.mark.slow
def test_tell_compares_with_the_committed_baselines(compared_runner: Runner) -> None:
    reference = next((ROOT / "results" / "baselines").glob("reference*.json.gz"))
    write(compared_runner.folder / "out" / "records" / "new.json", load(reference))
    assert compared_runner.step("tell.sh", BASELINE="") == {"comparison": "0"}, compared_runner.log


@pytest.mark.parametrize(
    ("variables", "text"), [({"BASELINE": "nowhere"}, r"^    conformance: .*nowhere"), ({"PYTHON": "false"}, "")]
)
def test_tell_without_a_comparison_writes_the_rest(
    compared_runner: Runner, variables: dict[str, str], text: str
) -> None:
    assert compared_runner.step("tell.sh", **variables) == {"comparison": "2"}, compared_runner.log
    assert compared_runner.status == 0
    assert "the comparison cannot be judged" in compared_runner.summary
    assert re.search(text, compared_runner.summary, re.MULTILINE)
    assert "(1 of 3 tests)" in compared_runner.summary or "PYTHON" in variables


def test_tell_unreadable_record_is_a_warning(compared_runner: Runner) -> None:
    (compared_runner.folder / "out" / "records" / "new.json").write_text("{\n::error::e")
    assert compared_runner.step("tell.sh") == {"comparison": "2"}, compared_runner.log
    assert "::warning::conformance: " in compared_runner.log
    assert not re.search(r"^::error::", compared_runner.log, re.MULTILINE)


@pytest.mark.parametrize("denied", ["", "1"])
def test_comment_is_cut_and_a_refused_token_is_a_notice(runner: Runner, denied: str) -> None:
    runner.install("gh", GH)
    (runner.folder / "out").mkdir()
    (runner.folder / "out" / "comparison.md").write_text("**worse**\n" * 10_000)
    runner.step("comment.sh", PULL="7", FAKE_DENIED=denied)
    assert runner.status == 0, runner.log
    options = "--repo owner/repo --edit-last --create-if-none --body-file -"
    assert (runner.folder / "log").read_text() == f"pr comment 7 {options}\n"
    text = (runner.folder / "comments.json").read_text()
    assert text.startswith("**worse**\n")
    assert 50_000 < len(text) < 65_536
    problem = "gh: Resource not accessible by integration (HTTP 403)"
    assert runner.log == (f"::notice::{problem}; the comparison stands in the job's summary\n" if denied else "\n")


@pytest.mark.parametrize(
    ("fail_on", "run", "comparison", "status"),
    [
        ("failures", "0", "1", 0),
        ("failures", "1", "0", 1),
        ("worse", "1", "0", 0),
        ("worse", "0", "1", 1),
        ("worse", "0", "2", 2),
        ("drift", "0", "1", 1),
        ("drift", "1", "0", 0),
        ("never", "1", "1", 0),
        ("never", "2", "0", 2),
        ("sometimes", "0", "0", 2),
    ],
)
def test_conclude_of_a_fail_on_gives_the_status(
    runner: Runner, fail_on: str, run: str, comparison: str, status: int
) -> None:
    runner.step("conclude.sh", FAIL_ON=fail_on, RUN=run, COMPARISON=comparison)
    assert runner.status == status, runner.log


def list_steps() -> list[tuple[str, dict[str, Any]]]:
    result = [("action", step) for step in yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]]
    for name, job in yaml.safe_load(WORKFLOW.read_text())["jobs"].items():
        result += [(name, step) for step in job["steps"]]
    return result


def test_scripts_get_every_variable_that_they_read() -> None:
    scripts = {}
    for where, step in list_steps():
        if where == "action" and "run" in step:
            (script,) = re.fullmatch(r'bash "\$GITHUB_ACTION_PATH/(\w+\.sh)"', step["run"]).groups()
            scripts[script] = step["env"].keys()
    assert scripts.keys() == {path.name for path in ACTION.glob("*.sh")}
    for name, variables in scripts.items():
        source = (ACTION / name).read_text()
        read = {result for result in re.findall(r"\$\{?([A-Z][A-Z_]+)", source) if not result.startswith("GITHUB_")}
        assert read - {"RUNNER_TEMP"} == set(variables) - {"GH_TOKEN"}, name


def test_steps_have_no_expression_in_a_shell_command() -> None:
    for where, step in list_steps():
        assert "${{" not in step.get("run", ""), where


def test_uses_of_other_actions_are_pinned() -> None:
    for path in (ACTION / "action.yml", WORKFLOW):
        for line in path.read_text().splitlines():
            if "uses:" in line and "uses: ./" not in line:
                assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_workflow_has_one_permission_to_write() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    permissions = {name: job["permissions"] for name, job in workflow["jobs"].items()}
    assert (workflow["permissions"], permissions.pop("together")) == (
        {},
        {"contents": "read", "pull-requests": "write"},
    )
    assert "pull_request_target" not in WORKFLOW.read_text()
    assert all(permission == {"contents": "read"} for permission in permissions.values())
