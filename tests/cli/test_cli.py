"""The command `conformance`: help, refusals, lists, comparisons, baselines, `doctor`, and files that it writes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from conformance.cli import SECTIONS, commands, main
from conformance.known_failures.reading import load_known
from conformance.runner import baselines, jobs
from conformance.spec.clauses import load_clauses
from conformance.test_ids import inventory
from frameworks.registry import built_in
from frameworks.ways import load_ways
from results.record.files import RecordError
from results.record.reading import Outcome, Record, TestVerdict, Variant, load, write
from tests.support.recorded import BASE, change_verdict
from tests.support.suite_runs import ROOT, assert_refused, call_command, environment, hang_limit, run
from tools.commands import TOOLS
from tools.commands import commands as tools

COMMANDS = [entry for entries in SECTIONS.values() for entry in entries]
NAMES = {"conformance": {entry.name for entry in COMMANDS}, "tools": set(tools.commands)}
WITH_HELP = (*(entry.name for entry in COMMANDS), "new adapter", "spec show")
TITLE = "**Conformance: nothing is worse: identical.**"
TOY = "toy_adapter:Toy"
ADAPTER = """
import os, signal, time
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer

FAULT = os.environ.get("TOY_BREAKS", "")
print("output of a framework")
if FAULT == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if FAULT == "hang":
    time.sleep(600)

class ToyTrainer(ReferenceTrainer):
    def predict(self, inputs):
        if FAULT == "error":
            raise RuntimeError("toy: out of memory")
        return super().predict(inputs)

    def gradients(self, window):
        return {name: array * (2 if FAULT == "wrong" else 1) for name, array in super().gradients(window).items()}

class Toy(ReferenceFramework):
    trainer_class = ToyTrainer
"""
SMI = "#!/bin/sh\necho '| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |'\n"

Doctor = Callable[..., tuple[int, str, dict[str, tuple[str, str]]]]


@pytest.mark.parametrize("arguments", [(), *(tuple(name.split()) for name in WITH_HELP)])
def test_help_of_a_command_shows_its_use(arguments: tuple[str, ...]) -> None:
    completed = call_command(*arguments, "--help")
    assert completed.status == 0
    assert "conformance " in completed.output
    assert not re.search(r"(?m)^  (?!conformance|python|-)[^\n]*\w[;,]? {5}[a-z]", completed.output), (
        "click joined an indented line of a docstring to the one before"
    )
    assert not completed.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("comapre",), "Did you mean 'compare'?"),
        (("faults",), "No such command 'faults'; `conformance --help`"),
        (("spec", "fault"), "No such command 'fault'"),
        (("install", "caffe"), "'caffe' is not one of 'torch'"),
        (("install", "torch", "torch"), "a framework is named twice"),
        (("ways", "nosuch.mod:Cls"), "no module nosuch.mod can be imported from here"),
        (("install", "jax", "--mode", "keras"), "--mode: got keras, want none, jax needs no more packages"),
        (("install", "torch", "--mode", "kera"), "--mode: got kera, want one of accelerate, "),
        (("table", "--format", "pdf"), "'pdf' is not one of"),
        (("table", "--output", "x.md"), "--output needs --format markdown"),
        (("table", "--format", "markdown", "--times"), "are for --format table"),
        (("compare", "one.json"), "Missing argument 'NEW'"),
        (("compare", "nowhere.json", "nowhere.json"), "nowhere.json: cannot be read"),
        (("spec", "show", "scaling.automation"), "no clause 'scaling.automation'"),
        (("spec", "show", "scaling"), "no clause 'scaling'; `conformance spec list --family scaling` lists those of"),
        (("spec", "show", "nosuch"), "no clause 'nosuch'; `conformance spec list` lists all of them"),
        (("spec", "list", "--family", "x"), "no family 'x': one of accumulation"),
        (("findings", "torch", "no-such-word"), "no finding matches; `conformance findings torch` lists all of them"),
        (("findings", "torch", "--clause", "scaling.nosuch"), "no clause 'scaling.nosuch'"),
        (("findings", "torch", "--class", "bug"), "'bug' is not one of"),
        (("accept", "nowhere.json", "--reason", "x", "--dry-run"), "want --reason TEXT alone, or the options of"),
        (("accept", "nowhere.json", "--reason", " "), "is empty"),
        (("ways", "caffe"), "unknown framework 'caffe': one of jax, paddle"),
        (("run", "caffe"), "unknown framework 'caffe'"),
        (("doctor", "nowhere"), "unknown framework 'nowhere'"),
        (("doctor", "torch", "torch"), "a framework is named twice"),
        (("doctor", "--limit", "0"), "0 is not in the range"),
    ],
)
def test_command_that_cannot_run_is_refused_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    completed = call_command(*arguments)
    assert completed.status == 2, completed.lines
    assert len(completed.lines) == 1, completed.lines
    assert message in completed.lines[0]


def test_help_lists_every_command_in_the_order_of_its_sections() -> None:
    lines = call_command("--help").output.splitlines()
    indices = [lines.index(next(line for line in lines if line.startswith(f"  {entry.name} "))) for entry in COMMANDS]
    assert indices == sorted(indices)
    assert set(commands.list_commands(click.Context(commands))) == {entry.name for entry in COMMANDS}


def test_help_and_lists_start_without_numpy_and_adapters() -> None:
    slow = "{'numpy', 'scipy', 'pytest', 'frameworks.contract'}"
    calls = [
        ["--help"],
        ["table", str(ROOT / "results" / "baselines" / "reference-1-cpu-emulated.json.gz")],
        ["spec", "list"],
        ["findings", "torch"],
    ]
    calls += [[name, "--help"] for name in NAMES["conformance"]]
    program = (
        f"import sys\nfrom conformance.cli import main\nfor argv in {calls}: main(argv)\n"
        f"print(sorted({slow} & set(sys.modules)), file=sys.stderr)"
    )
    assert run([sys.executable, "-c", program]).errors.splitlines()[-1] == "[]"


def test_tools_from_any_folder_pass_arguments_and_status_on(tmp_path: Path) -> None:
    completed = run([sys.executable, "-m", "tools", "faults", "NoSuchFault"], tmp_path, PYTHONPATH=str(ROOT))
    assert (completed.status, len(completed.lines)) == (2, 1)
    assert "NoSuchFault" in completed.lines[0]


@pytest.mark.parametrize("name", TOOLS)
def test_tools_are_modules_of_the_checkout_or_pytest(name: str) -> None:
    module, *arguments = TOOLS[name].arguments
    assert module == "pytest" or find_spec(module) is not None
    assert all((ROOT / argument).exists() for argument in arguments if not argument.startswith("-"))


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_pages_name_commands_that_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    commands_of_page = re.findall(r"(?:python -m|bin/|`|tox -e dev --)\s*(conformance|tools) ([a-z][\w-]*)", text)
    assert [name for program, name in commands_of_page if name not in NAMES[program]] == []


def test_compare_prints_markdown_and_writes_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    write(old, BASE)
    write(new, change_verdict(BASE, 0, outcome=Outcome.FAIL))
    row = "| newly failing | `scaling.stays-finite` | `test_a` | pass | fail |"
    assert row in call_command("compare", old, new, "--format", "markdown").output
    assert call_command("compare", old, new, "--format", "markdown", "--output", tmp_path / "out.md").status == 1
    assert row in (tmp_path / "out.md").read_text("utf-8")


def test_run_takes_options_after_the_framework_and_modes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(jobs, "job", lambda *args: calls.append(args) or 0)
    assert main(["run", "torch", "-k", "a and b", "--ways", "clip.two-calls", "--mode=x,y", "--seed", "1"]) == 0
    assert main(["run", "reference", "--", "--mode", "z"]) == 0
    (framework, modes, _, arguments, ways), (_, _, _, reference_arguments, _) = calls
    monkeypatch.setenv("CONFORMANCE_MODES", "a,b")
    assert main(["run", "reference"]) == main(["run", "--mode", "c", "reference"]) == 0
    assert [modes for _, modes, *_ in calls[2:]] == [["a", "b"], ["c"]]
    assert (framework, modes, arguments, ways) == (
        "torch",
        ["x", "y"],
        ["--tests=all", "-k", "a and b", "--seed=1"],
        [("clip.two-calls",)],
    )
    assert reference_arguments == ["--tests=core", "--mode", "z"]


def test_compare_partial_leaves_out_old_records_without_a_partner(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    compiled = replace(BASE, series=replace(BASE.series, mode="compile"))
    for name, record in (("old/a", BASE), ("old/b", compiled), ("new", BASE)):
        write(tmp_path / f"{name}.json", record)
    assert call_command("compare", tmp_path / "old", tmp_path / "new.json").status == 2
    assert call_command("compare", "--partial", tmp_path / "old", tmp_path / "new.json").status == 0
    unmatched = call_command("compare", "--partial", tmp_path / "old" / "b.json", tmp_path / "new.json")
    assert unmatched.status == 2
    assert "only among the new records" in unmatched.output


def test_spec_show_has_bugs_tests_and_known_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("results.record.reading.from_json", lambda _: pytest.fail("a record is read"))
    assert main(["spec", "show", "scaling.stays-positive"]) == 0
    printed = capsys.readouterr().out
    for text in ("MUST", "https://github.com/NVIDIA/apex/issues/834", "test_scaling.py::", "scale-reaches-zero"):
        assert text in printed
    assert re.search(
        r"^  torch \(.*\beager\b.*\) · defect, silent-corruption · scale-reaches-zero$", printed, re.MULTILINE
    )
    assert main(["spec", "show", "scaling.detects-nan"]) == 0
    assert capsys.readouterr().out.endswith("Known failures:\n  none\n")


def test_issue_reads_the_records_of_its_framework(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths: list[Path] = []
    monkeypatch.setattr(
        "conformance.cli.spec.load", lambda path: paths.append(path) or load(path if paths[1:] else ROOT)
    )
    monkeypatch.setattr("conformance.cli.spec.run_program", lambda _: "not run in this test")
    assert main(["issue", "scaling.automaton", "--framework", "jax"]) == 0
    assert {path.name.partition("-")[0] for path in paths} == {"jax"}
    assert capsys.readouterr().err == f"conformance: {ROOT}: is not a regular file; name another file\n"


def test_lists_into_a_pipe_print_one_line_for_each_entry(capsys: pytest.CaptureFixture[str]) -> None:
    def entries(*arguments: str) -> list[list[str]]:
        assert main([*arguments]) == 0
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    assert entries("spec", "list") == [[c.id, c.level, c.requirement] for c in load_clauses().values()]
    names = [(name, str(way), [*way.calls]) for name in sorted(built_in()) for way in load_ways(name)]
    ways = [(name, way, calls.split("; ")) for name, way, calls, _ in entries("ways")]
    assert [(name, way, [call.partition("(")[0] for call in calls]) for name, way, calls in ways] == names
    known = load_known(["torch"]).findings
    listed = {(kind, name, reason, link) for kind, _, name, reason, _, link in entries("findings", "torch")}
    assert listed == {(finding.text.kind, finding.id, finding.text.reason, finding.text.link) for finding in known}


def test_lists_in_a_terminal_print_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments in (["spec", "list"], ["ways", "torch"], ["findings", "torch"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert "\t" not in printed
        assert "\x1b[" in printed


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["--clause", "scaling.stays-positive"], lambda entry: "scaling.stays-positive" in entry[4].split(", ")),
        (["--class", "numerics"], lambda entry: entry[0] == "numerics"),
        (["gradscaler", "fused"], lambda entry: all(word in str(entry).lower() for word in ("gradscaler", "fused"))),
    ],
    ids=["clause", "class", "text"],
)
def test_findings_with_a_filter_prints_matches_and_their_count(
    arguments: list[str], condition: Callable[[list[str]], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["findings", "torch"]) == 0
    entries = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert main(["findings", "torch", *arguments]) == 0
    printed, count = capsys.readouterr()
    assert [line.split("\t") for line in printed.splitlines()] == [entry for entry in entries if condition(entry)] != []
    assert count == f"{len(printed.splitlines())} findings\n"


def test_spec_search_finds_clauses_by_their_words() -> None:
    completed = call_command("spec", "search", "bias", "DeepSpeed")
    assert "master.counts-every-update" in completed.output
    assert "accumulation.evaluation-changes-nothing" in call_command("spec", "search", "predict").output
    none = call_command("spec", "search", "nothing-is-called-so")
    assert (none.status, len(none.lines)) == (2, 1)
    assert "no clause matches; " in none.lines[0]
    assert call_command("spec", "list", "--family", "scaling", "--level", "may").status == 2


def test_former_leaves_out_an_interrupted_run(tmp_path: Path) -> None:
    write(tmp_path / "torch-2.13.0.interrupted-1.json.gz", replace(BASE, status="interrupted"))
    assert baselines.former(BASE, tmp_path) is None
    write(tmp_path / "torch-2.12.0.json.gz", BASE)
    assert baselines.former(BASE, tmp_path) == (tmp_path / "torch-2.12.0.json.gz", BASE)


def test_former_and_accept_take_the_baseline_of_a_processor_alike(complete_record: Record, tmp_path: Path) -> None:
    folder = tmp_path / "baselines"
    folder.mkdir()
    narrow, wide = (
        replace(complete_record, variant=replace(BASE.variant, instruction_sets=sets))
        for sets in (("avx2",), ("avx2", "avx512f"))
    )
    names = "torch-2.13.0-cpu-eager.json.gz", "torch-2.13.0-with-avx512-cpu-eager.json.gz"
    for name, record in zip(names, (narrow, wide), strict=True):
        write(folder / name, record)
    paths = [found[0].name for record in (narrow, wide) if (found := baselines.former(record, folder))]
    assert paths == [*names]
    write(tmp_path / "new.json", wide)
    assert baselines.accept(tmp_path / "new.json", "wide", folder).name == names[1]
    assert load(folder / names[0]).notes == narrow.notes


def with_series(**changes: str) -> dict[str, Any]:
    return {"series": replace(BASE.series, **changes)}


@pytest.fixture
def complete_record() -> Record:
    """A record with a passing verdict of every test of the suites."""
    tests = inventory().values()
    clauses = dict.fromkeys({*BASE.clauses, *(code.clause for code in tests)}, next(iter(BASE.clauses.values())))
    verdicts = tuple(TestVerdict(code.id, code.clause, Outcome.PASS) for code in tests)
    return replace(BASE, clauses=clauses, verdicts=verdicts).sort_parts()


def test_accept_of_an_upgrade_replaces_the_baseline(complete_record: Record, tmp_path: Path) -> None:
    folder = tmp_path / "baselines"
    first, second = tmp_path / "torch-2.13.0-cpu-eager.json", tmp_path / "torch-2.14.0-cpu-eager.json"
    write(first, complete_record)
    write(second, replace(change_verdict(complete_record, 0, outcome=Outcome.FAIL), variant=Variant("2.14.0")))
    assert baselines.accept(first, "the first", folder) == folder / f"{first.name}.gz"
    assert baselines.accept(second, "an upgrade", folder) == folder / f"{second.name}.gz"
    (path,) = folder.iterdir()
    assert load(path).notes == ("accepted as the baseline: an upgrade",)
    assert baselines.former(complete_record, folder) == (path, load(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": "-k scaling"}, "of selected tests only"),
        ({"status": "interrupted"}, "of an interrupted run"),
        ({"status": "partial", "notes": ("1 tests were deselected",)}, "of selected tests only .1 tests"),
        ({"status": "partial"}, "of selected tests only; run all"),
        ({"seed": 5}, "is of seed 5, and baselines are of seed 0; run with --seed=0"),
        (with_series(framework="nosuch"), "no adapter is called 'nosuch': one of jax, "),
        (with_series(framework="../../evil"), "no adapter is called '../../evil'"),
        (with_series(mode="../x"), "got mode '../x', want a mode of torch"),
        (with_series(mode="nosuchmode"), "got mode 'nosuchmode', want a mode of torch, such as eager, compile"),
        (with_series(mode="eager+clip.nosuch"), "torch has no way 'clip.nosuch'"),
        ({"variant": Variant("../../zz")}, "framework_version: got '../../zz', want a name without path separators"),
        (with_series(device="/../../zz"), "device: got '/../../zz', want a name without path separators"),
        (with_series(device_kind="other"), r"2\.13\.0-cpu-eager\.json\.gz: is the baseline of another series"),
    ],
)
def test_accept_of_another_run_is_refused(
    complete_record: Record, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "whole.json", complete_record)
    path = baselines.accept(tmp_path / "whole.json", "the first", tmp_path / "baselines")
    write(tmp_path / "other.json", replace(complete_record, **changes))
    with pytest.raises(RecordError, match=message):
        baselines.accept(tmp_path / "other.json", "no", path.parent)
    assert [*path.parent.iterdir()] == [path]


def test_accept_of_a_record_without_a_test_is_refused(complete_record: Record, tmp_path: Path) -> None:
    write(tmp_path / "run.json", replace(complete_record, verdicts=complete_record.verdicts[1:]))
    with pytest.raises(RecordError, match=r"lacks 1 of the suites.* test functions \([^,]*\); "):
        baselines.accept(tmp_path / "run.json", "no", tmp_path / "baselines")
    assert not (tmp_path / "baselines").exists()


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Runs the command where a toy adapter can be imported: status, conclusion, and state and text by step."""
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def call(*arguments: str) -> tuple[int, str, dict[str, tuple[str, str]]]:
        status = main(["doctor", *arguments, "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        assert document["status"] == status
        steps = {step["name"]: (step["state"], step["text"]) for step in document["steps"]}
        return status, document["conclusion"], steps

    return call


def write_program(folder: Path, text: str) -> None:
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)


def test_doctor_of_a_working_adapter_checks_every_step(doctor: Doctor, tmp_path: Path) -> None:
    write_program(tmp_path, SMI)
    status, conclusion, steps = doctor(TOY, "--device", "cpu")
    assert (status, conclusion) == (0, "a run can work here")
    assert {state for state, _ in steps.values()} == {"ok"}
    assert [*steps] == ["python", "requirements", "driver", "import", "multiply", "backward"]
    assert steps["driver"][1] == "Driver Version: 580.1, CUDA Version: 13.0"
    assert steps["import"][1].endswith("mode emulated on cpu")


@pytest.mark.parametrize(
    ("breaks", "step", "text"),
    [
        ("crash", "import", "its process crashed with SIGSEGV"),
        ("hang", "import", "its process did not end within 2 s"),
        ("error", "multiply", "RuntimeError: toy: out of memory"),
        ("wrong", "backward", "ValueError: gradients of '"),
    ],
)
def test_doctor_names_the_step_that_fails(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, breaks: str, step: str, text: str
) -> None:
    monkeypatch.setenv("TOY_BREAKS", breaks)
    status, conclusion, steps = doctor(TOY, *(["--limit", "2"] if breaks == "hang" else []))
    assert (status, [name for name, (state, _) in steps.items() if state == "failed"]) == (1, [step])
    assert [*steps][-1] == step
    assert steps[step][1].startswith(text)
    assert conclusion.startswith(f"a run cannot work here: {TOY} {step}: {text}")


@pytest.mark.parametrize(
    ("script", "device", "state", "text"),
    [
        (None, "auto", "ok", "no NVIDIA driver: nvidia-smi is not on PATH"),
        (None, "cuda", "failed", "no NVIDIA driver: nvidia-smi is not on PATH"),
        ("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n", "auto", "failed", "nvidia-smi: NVIDIA-SMI has failed"),
        ("#!/bin/sh\nexit 9\n", "cpu", "ok", "no version"),
    ],
)
def test_doctor_needs_a_driver_where_a_gpu_is_asked_for(
    doctor: Doctor, tmp_path: Path, script: str | None, device: str, state: str, text: str
) -> None:
    if script is not None:
        write_program(tmp_path, script)
    assert doctor("reference", "--device", device)[2]["driver"] == (state, text)


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        ("2.13.0", "ok", "torch 2.13.0; "),
        ("2.1.0", "ok", "torch 2.1.0; the locked version is 2.13.0"),
        ("", "failed", "not installed"),
    ],
)
def test_doctor_compares_versions_with_the_lock(
    doctor: Doctor, tmp_path: Path, version: str, state: str, text: str
) -> None:
    if version:
        folder = tmp_path / f"torch-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    status, _, steps = doctor("torch")
    assert (status, steps["versions"][0]) == (1, state)
    assert steps["versions"][1].startswith(text)


def test_doctor_without_click_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n")
    completed = run([sys.executable, "-m", "conformance", "doctor"], PYTHONPATH=str(tmp_path))
    assert completed.status == 2
    assert completed.lines == [
        "conformance: click is not installed; pip install -U pip, then pip install --group suite --group run"
    ]


@pytest.fixture
def good_record(tmp_path: Path) -> Path:
    write(tmp_path / "good.json", BASE)
    return tmp_path / "good.json"


def test_compare_into_a_fifo_writes_to_its_reader(good_record: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    completed = call_command("compare", good_record, good_record, "--format", "markdown", "--output", fifo)
    assert (completed.status, fifo.is_fifo()) == (0, True)
    assert os.read(reader, 2**16).startswith(TITLE.encode())
    os.close(reader)


def test_compare_into_its_own_stdout_writes_to_the_pipe_or_appends(good_record: Path, tmp_path: Path) -> None:
    output = ("--format", "markdown", "--output", "/proc/self/fd/1")
    argv = [sys.executable, "-m", "conformance", "compare", good_record, good_record, *output]
    compare_into = partial(subprocess.run, argv, cwd=ROOT, env=environment(), text=True, timeout=hang_limit())
    completed = compare_into(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.startswith(TITLE)
    summary = tmp_path / "summary"
    summary.write_text("before\n", "utf-8")
    with summary.open("a") as stream:
        assert compare_into(stdout=stream).returncode == 0
    assert summary.read_text("utf-8").startswith(f"before\n{TITLE}")


def test_write_to_a_link_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to("folder/page")
    for text in ("first", "second"):
        write(link, replace(BASE, notes=(text,)))
        assert load(tmp_path / "folder" / "page").notes == (text,)
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "link", "page"]


@pytest.mark.parametrize("output", ["folder", "no/such/folder/page", "", "/dev/full/x", "x" * 300])
def test_compare_into_a_file_that_cannot_be_written_is_refused(output: str, good_record: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / output if output else Path()
    before = sorted(tmp_path.rglob("*"))
    completed = call_command("compare", good_record, good_record, "--output", target)
    assert_refused(completed, Path(str(target)[:100]))
    assert sorted(tmp_path.rglob("*")) == before
