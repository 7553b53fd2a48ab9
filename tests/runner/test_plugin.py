"""The plugin: refusals in one line, the outcome of every test, and what a run reports."""

import json
import re
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conformance.checks.subject import Subject
from conformance.runner import jobs
from conformance.runner.baselines import FOREIGN
from conformance.runner.recorder import closing_lines, describe_run, recorded_runs, run_of, source_for
from conformance.runner.subprocesses import harmless
from conformance.spec.clauses import load_clauses
from conformance.suites.composition import test_ways
from conformance.test_ids import SUITES
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, Adam, DynamicScaling, Offload, Recipe, Recompute
from frameworks.reference import ReferenceFramework
from results.compare.comparison import compare_sets
from results.record.model import Measurement, Outcome, Record, RunSetup, TestVerdict
from results.record.reading import load, write
from tests.support.misbehaving import BEHAVIOURS, DEADLY, Behaviour
from tests.support.recorded import BASE, CLAUSE, change_verdict
from tests.support.suite_runs import (
    ROOT,
    TIMEOUTS,
    WORKERS,
    CommandResult,
    clauses_of,
    conformance,
    copy_checkout,
    hang_limit,
    judge,
    outcomes,
    outcomes_by_case,
    run,
    write_expectations,
)

SUITE = """
@clause("scaling.automaton")
@pytest.mark.parametrize("value", [1, 2])
def test_holds(verdict: Verdict, value: int) -> None:
    verdict.equal(value, value, "a value")
    verdict.measure("time", "s", [value, 2.0 * value], control=[0.5, 1.0])


@clause("cost.mixed-speed")
def test_timed(subject: Subject) -> None:
    subject.trainer(scalar(), Recipe())


@clause("scaling.stays-finite")
def test_falls(verdict: Verdict) -> None:
    verdict.holds(False, "it stands", signature="falls")


@clause("master.levels")
def test_raises(subject: Subject) -> None:
    raise ZeroDivisionError("by nothing")


@clause("scaling.unscales-before-clipping")
def test_clips(subject: Subject) -> None:
    subject.trainer(scalar(), Recipe(clip=1.0))


@clause("resume.bit-identical")
def test_schedules(subject: Subject) -> None:
    subject.trainer(scalar(), Recipe(schedule=Steps((1,), (1.0, 0.5))))


@clause("scaling.defaults-are-declared")
def test_settings(subject: Subject) -> None:
    subject.trainer(scalar(), Recipe(scaling=DynamicScaling())).scaler_settings()


@clause("resume.random-state")
def test_last(subject: Subject, verdict: Verdict) -> None:
    verdict.equal(subject.framework.global_state(), {**subject.framework.global_state()}, "settings")
"""
IMPORT_BLOCKED = """
import sys
optional = ("sklearn", "xdist", "pytest_timeout", "pytest_benchmark")
sys.modules.update(dict.fromkeys(optional))
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
MISBEHAVING_SUITE = """
from tests.support import misbehaving

BEGINNING = misbehaving.surroundings()
STEPS = [step for name in misbehaving.{name} for step in (name, f"after {{name}}")]
VALUES = {{"text_without_a_form": object(), "long_text": "x" * misbehaving.BIG, "too_deep": [[]]}}
for _ in range(100):
    VALUES["too_deep"] = [VALUES["too_deep"]]


@clause("scaling.automaton")
@pytest.mark.parametrize("step", STEPS)
def test_step(subject: Subject, verdict: Verdict, step: str) -> None:
    if step in misbehaving.{name}:
        verdict.equal(misbehaving.{name}[step].act(), 1.0, "what it returned")
        return
    print("a line")
    verdict.equal(misbehaving.surroundings(), BEGINNING, "surroundings")
    verdict.holds(bool(subject.trainer(scalar()).parameters()), "it trains")


@clause("scaling.automaton")
@pytest.mark.parametrize("name", VALUES)
def test_recorded(verdict: Verdict, name: str) -> None:
    verdict.observe("value", VALUES[name])
"""
RUNS: dict[str, tuple[str, ...]] = {"one process": (), "a worker": (*WORKERS, "-n1", "--dist=load")}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout"), small=SUITE)


@pytest.fixture
def small(copied: Path) -> Iterator[Path]:
    """A checkout with one small suite, without expectations before and after."""
    yield copied
    for path in (copied / "frameworks").glob("*/findings.toml"):
        path.unlink()
        shutil.rmtree(path.parent / "expected", ignore_errors=True)
    shutil.rmtree(copied / "results" / "records", ignore_errors=True)


def judge_small_suite(small: Path, *arguments: str) -> Record:
    """The record of a run of the small suite."""
    record = small / "results" / "records" / "run.json"
    result = judge(*arguments, f"--record={record}", root=small)
    assert record.is_file(), result.lines
    return load(record)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--framework=nowhere", "one of jax, paddle, reference, tf, torch, or package.module:Class"),
        ("--framework=frameworks.broken:Nobody", "no attribute 'Nobody'"),
        ("--framework=tests.nowhere:Nobody", "No module named 'tests.nowhere'"),
        ("--framework=builtins:int", "cannot initialise adapter"),
        ("--framework=builtins:print", "is not an adapter: it lacks"),
        ("--framework=os:sep", "cannot initialise adapter"),
        ("--framework=tests.support.misbehaving:Unnamed", "ZeroDivisionError: no version"),
        ("--device=cuda", "reference sees no device 'cuda' here; it sees cpu"),
        ("--mode=eager", "reference has no mode 'eager': one of emulated"),
        ("--record=run.txt", "ends in .json"),
        ("--seed=-1", "--seed: got -1, want 0 to 9223372036854775807"),
        (f"--seed={2**63}", "want 0 to 9223372036854775807"),
        ("--record=/dev/null/run.json", "/dev/null/run.json"),
        ("", "expected/reference-1-cpu-emulated.txt: line 1: unknown clause 'scaling.no-such-clause'"),
    ],
)
def test_run_that_cannot_start_is_refused_in_one_line(small: Path, argument: str, message: str) -> None:
    if not argument:
        write_expectations(small, ("scaling.no-such-clause/test_falls", "falls"))
    result = judge(*argument.split(), root=small)
    lines = [line for line in result.lines if line != "cpu None"]  # which builtins:print prints
    assert (result.status, len(lines)) == (2, 1), result.lines
    assert message in lines[0]


def test_run_gives_every_test_its_outcome(small: Path) -> None:
    completed = judge("--framework=tests.support.misbehaving:Refusing", root=small)
    (path,) = (small / "results" / "records").glob("*Refusing*cpu*.json")
    record = load(path)
    assert (completed.status, record.status) == (1, "complete")
    assert all(text in completed.output for text in ("1 unsupported", "1 misdeclared", "(of 10 verdicts)"))
    result = outcomes_by_case(record)
    assert result["test_holds[1]"] is result["every test"] is Outcome.PASS
    assert result["test_falls"] is Outcome.FAIL
    assert result["test_raises"] is Outcome.ERROR
    assert result["test_clips"] is Outcome.UNSUPPORTED
    assert result["test_schedules"] is Outcome.MISDECLARED
    reasons = {verdict.case: (verdict.signature, verdict.reason) for verdict in record.verdicts}
    assert reasons["test_falls"][0] == "falls"
    assert reasons["test_raises"][0] == "raises-ZeroDivisionError"
    assert reasons["test_clips"] == ("optimizer.clip", "gradients are never clipped here")
    assert reasons["test_schedules"] == ("optimizer.schedule", "schedules are not followed after all")
    assert record.measurements == tuple(
        Measurement("scaling.automaton", "time", f"test_holds[{n}]", "s", (n, 2.0 * n), (0.5, 1.0)) for n in (1, 2)
    )


def test_run_with_expectations_confirms_or_refutes_them(small: Path) -> None:
    write_expectations(
        small,
        ("scaling.stays-finite/test_falls", "falls"),
        ("scaling.automaton/test_holds[1]", "falls"),
        ("scaling.automaton/test_holds[2]", "falls"),
        ("master.levels/test_raises", "raises-ValueError"),
        ("recompute.nested/test_gone", "falls"),
        ("autocast.settings-restored/every test", "settings-leaked"),
    )
    record = judge_small_suite(small, "--framework=tests.support.misbehaving:Leaky")
    assert outcomes(record, "scaling.stays-finite") == [Outcome.KNOWN]
    assert outcomes(record, "scaling.automaton") == [Outcome.FIXED, Outcome.FIXED]
    assert outcomes(record, "master.levels") == [Outcome.ERROR]
    assert outcomes(record, "recompute.nested") == [Outcome.ERROR]
    assert outcomes(record, "autocast.settings-restored") == [Outcome.KNOWN]
    verdicts = {verdict.clause: verdict for verdict in record.verdicts}
    assert (verdicts["scaling.stays-finite"].reason, verdicts["scaling.stays-finite"].link) == (
        "It does.",
        "https://example.org/1",
    )
    assert "signature differs" in verdicts["master.levels"].message
    assert "matched no test" in verdicts["recompute.nested"].message


def test_run_with_known_failures_alone_ends_with_0(small: Path) -> None:
    raised = ("master.levels/test_raises", "raises-ZeroDivisionError")
    write_expectations(
        small, ("scaling.stays-finite/test_falls", "falls"), raised, ("recompute.nested/test_gone", "falls")
    )
    assert judge("-k", "not nested", root=small).status == 0


def test_run_puts_timed_and_then_spoiling_tests_last(small: Path) -> None:
    write_expectations(small, ("scaling.stays-finite/test_falls", "falls"), spoiling=True)
    result = judge("-vv", root=small)
    run = [line.split()[0].rpartition("::")[2] for line in result.lines if "::" in line and "[" in line]
    assert (run[0], run[-2:]) == ("test_holds[1]", ["test_timed", "test_falls"]), result.lines


def test_run_with_leaked_settings_has_one_failure(small: Path) -> None:
    record = judge_small_suite(small, "--framework=tests.support.misbehaving:Leaky")
    (leak,) = [verdict for verdict in record.verdicts if verdict.clause == "autocast.settings-restored"]
    assert (leak.outcome, leak.case, leak.signature) == (Outcome.FAIL, "every test", "settings-leaked")
    assert "trainers: 0 → 1 (4 tests, test_clips first)" in leak.message
    assert outcomes_by_case(record)["test_clips"] is Outcome.PASS
    leaks = {verdict.case: verdict.leaks for verdict in record.verdicts}
    assert leaks["test_clips"] == leaks["test_settings"] == ("trainers: 0 → 1",)
    assert leaks["test_last"] == ()


def test_run_of_a_framework_that_wavers_abstains(tmp_path: Path) -> None:
    suite, path = SUITES / "recompute/test_recompute.py", tmp_path / "run.json"
    selected = (suite, "-k", "masks_are_replayed and mlp")
    judge("--framework=tests.support.misbehaving:Restless", *selected, f"--record={path}")
    assert set(outcomes(load(path), "recompute.replays-dropout")) == {Outcome.ABSTAIN}


@pytest.mark.parametrize(
    "arguments",
    [
        ["conformance/suites/scaling", "-k", "skip and nan or automaton"],
        pytest.param(["-k", "scaling"], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_run_of_scaling_needs_the_first_requirements_alone(arguments: list[str]) -> None:
    result = run([sys.executable, "-c", IMPORT_BLOCKED, *arguments], PYTHONPATH=str(ROOT))
    assert result.status == 0, result.lines[-12:]


def without_times(value: Any) -> Any:
    """A document without dates and durations."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("started", "finished", "duration_s")}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_run_with_the_same_seed_gives_the_same_record(tmp_path: Path) -> None:
    documents = []
    for name in ("first", "second"):
        path = tmp_path / name / "run.json"
        selected = (SUITES / "scaling/test_scaling_skip.py", "-k", "nan and not adam")
        assert judge(*selected, "--seed=3", f"--record={path}").status == 0
        documents.append(without_times(json.loads(path.read_text("utf-8"))))
    assert documents[0]["seed"] == 3
    assert len(documents[0]["verdicts"]) > 5
    assert documents[0] == documents[1]


def test_run_of_a_broken_twin_fails_its_family_alone(tmp_path: Path) -> None:
    files = [path for name in ("test_scaling_skip", "test_resume") for path in sorted(SUITES.rglob(f"{name}*.py"))]
    quick = "not adam and not envelope and not encoder and not new_process and not restores_saved_state"
    record_option = f"--record={tmp_path / 'twin.json'}"
    result = judge("--framework=frameworks.broken:AppliesOverflow", "-k", quick, record_option, *files)
    assert result.status == 1, result.output
    record = load(tmp_path / "twin.json")
    assert record.status == "partial"
    failing = clauses_of(record, {outcome for outcome in Outcome if outcome.bad})
    assert {name.partition(".")[0] for name in failing} == {"scaling"}
    holding = clauses_of(record, {Outcome.PASS}) - failing
    assert len([name for name in holding if name.startswith("resume.")]) >= 5
    failures = [v for v in record.verdicts if v.clause == "scaling.skip-is-atomic" and v.outcome is Outcome.FAIL]
    assert failures
    runs = [line for line in result.lines if line.startswith("run: ")]
    assert runs
    assert all(" under " in line and "scaling=DynamicScaling(" in line for line in runs)
    for verdict in failures:
        assert verdict.signature
        assert not verdict.checks[-1].passed
        assert re.search(r"got .+, want ", verdict.message)
        assert verdict.test == f"{verdict.clause}/{verdict.case}"
    python, option, module, *arguments = shlex.split(failures[0].repro)
    assert (python, option, module) == ("python", "-m", "pytest")
    again = judge(*arguments)
    assert again.status == 1
    assert "1 failed" in again.output
    assert failures[0].message[:60] in again.output


def run_behaviours(folder: Path, name: str, *arguments: str) -> tuple[CommandResult, Record]:
    """Runs the behaviours, each followed by a test of the process state."""
    root = copy_checkout(folder, behaving=MISBEHAVING_SUITE.format(name=name))
    record = root / "run.json"
    result = judge(*arguments, f"--record={record}", "-p", "no:randomly", root=root)
    assert record.is_file(), result.lines[-30:]
    return result, load(record)


def check_steps(record: Record, behaviours: dict[str, Behaviour]) -> None:
    """Asserts the outcome of each behaviour, and that the test after it passes."""
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    for name, behaviour in behaviours.items():
        verdict, after = (verdicts[f"test_step[{case}]"] for case in (name, f"after {name}"))
        outcomes = (verdict.outcome, after.outcome)
        assert outcomes == (behaviour.outcome, Outcome.PASS), (name, verdict.message, after.message)
        assert verdict.case in verdict.repro
        assert verdict.message or verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("name", ["one process", pytest.param("a worker", marks=pytest.mark.slow)])
def test_run_of_a_behaviour_costs_its_own_test(tmp_path: Path, name: str) -> None:
    result, record = run_behaviours(tmp_path, "BEHAVIOURS", *RUNS[name])
    check_steps(record, BEHAVIOURS)
    assert (result.status, record.status) == (1, "complete"), result.lines[-10:]
    assert len(record.verdicts) == 2 * len(BEHAVIOURS) + 4
    assert sum(map(len, result.lines)) < 3_000_000
    recorded = [verdict for verdict in record.verdicts if verdict.case.startswith("test_recorded")]
    assert [(verdict.outcome, verdict.signature) for verdict in recorded] == [(Outcome.ERROR, "cannot-be-stored")] * 3


def test_run_of_a_deadly_behaviour_costs_its_own_test(tmp_path: Path) -> None:
    arguments = (*WORKERS, "-n2", "--max-worker-restart=99", *TIMEOUTS, f"--timeout={hang_limit(1.5):g}", "-k", "step")
    result, record = run_behaviours(tmp_path, "DEADLY", *arguments)
    assert result.status == 1
    check_steps(record, DEADLY)


RECIPE = Recipe(Adam(0.5), BFLOAT16, DynamicScaling(initial=8.0), accumulation=2, recompute=Recompute(2))
FAILING = change_verdict(BASE, 0, outcome=Outcome.FAIL)
CLIP = "scaling.unscales-before-clipping"
HOSTILE = "::error file=x::taken in"
COMMAND = re.compile(r"^\s*::|##\[")
"""What the runner of GitHub takes for a command."""

WARNING = """
@clause("scaling.stays-finite")
def test_warns(verdict: Verdict) -> None:
    warnings.warn("a framework's warning")
    verdict.equal(1, 1, "number", "differs")
"""
PRINTING = """
import sys


print("::error::as it is imported")
os.write(2, b"::error::past Python\\n")


@clause("scaling.automaton")
def test_that_prints(subject: Subject) -> None:
    print("::error::printed")
    print("\N{NO-BREAK SPACE}::warning::printed", file=sys.stderr)
    raise ValueError("a message\\n::error::raised")
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_checkout(tmp_path_factory.mktemp("checkout"), small=SUITE)
    write_expectations(root, ("scaling.stays-finite/test_falls", "falls"))
    return root


@pytest.mark.parametrize("workers", [(), (*WORKERS, "--numprocesses=1")], ids=["one process", "workers"])
def test_junit_report_has_properties_of_every_test(reported: Path, tmp_path: Path, workers: Sequence[str]) -> None:
    path = tmp_path / "junit.xml"
    judge("--framework=tests.support.misbehaving:Refusing", f"--junitxml={path}", *workers, root=reported)
    cases = ElementTree.parse(path).getroot().findall(".//testcase")
    properties_of = {
        case.get("name", ""): {p.get("name", ""): p.get("value", "") for p in case.iterfind("properties/property")}
        for case in cases
    }
    assert len(properties_of) == len(cases) == 9
    assert Counter(name for properties in properties_of.values() for name in properties)["clause"] == 9
    assert properties_of["test_holds[1]"].pop("repro").endswith("conformance/suites/test_small.py::test_holds[1]'")
    assert properties_of["test_holds[1]"] == {"clause": "scaling.automaton", "outcome": "pass"}
    kinds = {name: (properties["outcome"], properties.get("signature")) for name, properties in properties_of.items()}
    assert kinds["test_raises"] == ("error", "raises-ZeroDivisionError")
    assert kinds["test_clips"] == ("unsupported", "optimizer.clip")
    assert kinds["test_schedules"] == ("misdeclared", "optimizer.schedule")
    result = {case.get("name"): [part.tag for part in case if part.tag != "properties"] for case in cases}
    assert result["test_holds[1]"] == []
    assert result["test_clips"] == ["skipped"]
    assert result["test_raises"] == result["test_schedules"] == ["failure"]


def test_junit_report_of_a_known_failure_has_its_link(reported: Path, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    judge("-k", "falls", f"--junitxml={path}", root=reported)
    (case,) = ElementTree.parse(path).getroot().findall(".//testcase")
    properties = {p.get("name"): p.get("value") for p in case.iterfind("properties/property")}
    known = {"outcome": "known", "signature": "falls", "link": "https://example.org/1", "finding": "f0"}
    assert known.items() <= properties.items()
    (skipped,) = case.findall("skipped")
    assert skipped.get("message") == "falls: It does."


@pytest.mark.parametrize(
    ("modes", "arguments", "expected"),
    [
        (("a", "b"), ["-x", "--junitxml=r/j.xml"], [["-x", "--junitxml=r/j-a.xml"], ["-x", "--junitxml=r/j-b.xml"]]),
        (("a", "b"), ["--junit-xml", "r.d/j", "-x"], [["--junit-xml", f"r.d/j-{m}", "-x"] for m in "ab"]),
        (("a",), ["--junitxml=j.xml"], [["--junitxml=j.xml"]]),
    ],
)
def test_job_of_several_modes_has_a_report_for_each(
    monkeypatch: pytest.MonkeyPatch, modes: Sequence[str], arguments: list[str], expected: list[list[str]]
) -> None:
    calls: list[list[str]] = []

    def stub_judge(*arguments: Any) -> int:
        calls.append(arguments[-1])
        return 2

    monkeypatch.setattr(jobs, "_find_refusal", lambda *_: "")
    monkeypatch.setattr(jobs, "judge", stub_judge)
    assert jobs.job("reference", modes, "cpu", arguments) == 2
    assert calls == expected


@pytest.mark.parametrize(
    ("framework", "record", "conclusions"),
    [
        ("my_training:Loop", BASE, []),
        ("reference", BASE, ["baseline", "nothing is worse"]),
        ("reference", FAILING, ["baseline", "1 test needs action"]),
        ("reference", None, []),
    ],
)
def test_job_of_an_own_loop_has_no_conclusion(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    framework: str,
    record: Record | None,
    conclusions: list[str],
) -> None:
    status = int(record is not BASE)

    def stub_judge(*_: object) -> int:
        time.sleep(0.05)  # the times of files have a resolution of milliseconds
        if record:
            write(tmp_path / "run.json", record)
        return status

    monkeypatch.setattr(jobs, "LAST_RUNS", tmp_path)
    monkeypatch.setattr(jobs, "_find_refusal", lambda *_: "")
    monkeypatch.setattr(jobs, "former", lambda _: None)
    monkeypatch.setattr(jobs, "judge", stub_judge)
    assert jobs.job(framework, [""], "cpu", []) == status
    printed = capsys.readouterr().out
    assert [text for text in ("baseline", "1 test needs action", "nothing is worse") if text in printed] == conclusions


def verdict(case: str, outcome: Outcome, message: str = "", reason: str = "") -> TestVerdict:
    repro = f"python -m pytest conformance/suites/test_x.py::{case}"
    return TestVerdict(f"{CLIP}/{case}", CLIP, outcome, message=message, reason=reason, repro=repro)


def test_closing_lines_of_a_failure_quote_its_clause() -> None:
    judged = [
        verdict("test_a", Outcome.PASS),
        verdict("test_b", Outcome.FAIL, "step: got 5, want 1"),
        verdict("test_c", Outcome.FAIL, "step: got 7, want 1"),
        verdict("test_d", Outcome.UNSUPPORTED, reason="the loop ignores recipe.clip"),
    ]
    summary, _, clause, rule, source, difference, repeat, _, counts = closing_lines(judged, "torch")
    assert summary == "clauses that fail: 1"
    assert clause == f"{CLIP}: 2 of 3 tests fail"
    assert rule.strip() == f"rule: {' '.join(load_clauses()[CLIP].requirement.split())}"
    assert source.strip() == "source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
    assert difference.strip() == "fail: step: got 5, want 1"
    assert repeat.endswith("/conformance/suites/test_x.py::test_b")
    assert repeat.startswith("  repeat: python -m pytest /")
    assert counts == "1 tests pass, 1 do not apply (1: the loop ignores recipe.clip)."


def test_closing_lines_of_equal_failures_are_one_paragraph() -> None:
    failed = verdict("test_a", Outcome.ERROR, "TypeError: no 2")
    equal = [
        replace(failed, clause=clause, message=f"TypeError: no {n}")
        for n, clause in enumerate(("scaling.automaton", "scaling.skip-is-atomic"))
    ]
    different = replace(failed, clause="cost.state", message="ValueError: no")
    lines = closing_lines([failed, *equal, different], "torch")
    assert lines[0] == "clauses that fail: 4"
    assert [line for line in lines if line.endswith("tests fail")] == [
        f"{CLIP}: 1 of 1 tests fail",
        "cost.state: 1 of 1 tests fail",
    ]
    assert "  in the same way: scaling.automaton (1 of 1), scaling.skip-is-atomic (1 of 1)" in lines


def test_closing_lines_without_a_failure_say_so() -> None:
    assert closing_lines([verdict("test_a", Outcome.PASS)], "torch") == ["clauses that fail: none", "", "1 tests pass."]


def test_source_for_a_framework_is_its_own_or_the_first() -> None:
    clause = load_clauses()[CLIP]
    assert source_for(clause, "torch").startswith("https://docs.pytorch.org/")
    assert source_for(clause, "keras") == "Pascanu et al. 2013, arXiv:1211.5063"


def test_conclusion_counts_failures_on_a_foreign_processor() -> None:
    foreign = replace(BASE, verdicts=(verdict("test_a", Outcome.FAIL, f"{FOREIGN} (avx2; they have avx512): got 1"),))
    native = replace(BASE, verdicts=(verdict("test_b", Outcome.FAIL, "got 1"), verdict("test_c", Outcome.PASS)))
    assert jobs.conclusion([native], []) == "1 test needs action"
    assert jobs.conclusion([native, foreign], []) == f"2 tests need action, 1 of them {FOREIGN}"


def test_conclusion_names_what_is_worse() -> None:
    assert jobs.conclusion([replace(BASE, status="interrupted")], []) == "the run did not end"
    lowered = replace(BASE.clauses[CLAUSE], level="MAY")
    weaker = compare_sets([BASE], [replace(BASE, clauses={**BASE.clauses, CLAUSE: lowered})])
    assert jobs.conclusion([BASE], [weaker]) == "worse than in the baseline: 1 level lowered"
    assert jobs.conclusion([BASE], [compare_sets([BASE], [BASE])]) == "nothing is worse"


def test_run_of_a_recipe_has_what_differs_from_the_default() -> None:
    model = exact_stack()
    assert run_of(model, Recipe()) == RunSetup(model.name, {})
    run = run_of(model, RECIPE)
    assert run.recipe == {
        "optimizer": {"kind": "Adam", "learning_rate": 0.5, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
        "precision": {"kind": "Precision", "level": "O1", "format": "bfloat16"},
        "scaling": {
            "kind": "DynamicScaling",
            "initial": 8.0,
            "growth": None,
            "backoff": None,
            "interval": None,
            "enabled": True,
        },
        "accumulation": 2,
        "recompute": {"kind": "Recompute", "segments": 2, "depth": 1, "variant": None},
    }
    assert describe_run(run) == (
        f"{model.name} under optimizer=Adam(learning_rate=0.5, beta1=0.9, beta2=0.999, epsilon=1e-08), "
        "precision=Precision(level=O1, format=bfloat16), scaling=DynamicScaling(initial=8, enabled=True), "
        "accumulation=2, recompute=Recompute(segments=2, depth=1)"
    )


def test_run_of_an_offload_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    first, second = (
        Recipe(offload=Offload(("optimizer",), "disk", str(tmp_path / name))) for name in ("first", "second")
    )
    assert run_of(exact_stack(), first) == run_of(exact_stack(), second)
    assert str(tmp_path) not in describe_run(run_of(exact_stack(), first))
    assert run_of(exact_stack(), first) != run_of(exact_stack(), Recipe(offload=Offload(("optimizer",), "disk")))


def test_recorded_runs_has_each_run_once() -> None:
    framework, model = ReferenceFramework("cpu"), exact_stack()
    with recorded_runs(framework) as runs:
        for recipe in (Recipe(), RECIPE, Recipe()):
            framework.trainer(model, recipe)
    framework.trainer(model, Recipe(accumulation=3))
    assert runs == [run_of(model, Recipe()), run_of(model, RECIPE)]
    assert "trainer" not in vars(framework)


def test_recorded_runs_leaves_out_the_default_way() -> None:
    framework = ReferenceFramework("cpu")
    subject = Subject(framework)
    with recorded_runs(framework) as runs:
        test_ways._by_default_way(subject, exact_linear(), Recipe())
        assert runs == []
        subject.trainer(exact_linear(), Recipe())
    assert [run.fixture for run in runs] == ["exact-linear"]


def capture_output(*pieces: str, monkeypatch: pytest.MonkeyPatch, job: str = "true") -> str:
    """The output of writing and flushing the pieces one by one."""
    monkeypatch.setenv("GITHUB_ACTIONS", job)
    out = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(out, "utf-8"))
    with harmless():
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.flush()
    return out.getvalue().decode("utf-8")


@pytest.mark.parametrize(
    "pieces",
    [
        (HOSTILE,),
        (f"a\n  {HOSTILE}\n",),
        (f"a\r{HOSTILE}\n",),
        (f"\N{NO-BREAK SPACE}\N{EM SPACE}{HOSTILE}\n",),
        ("a ##[error]b\n",),
        tuple(HOSTILE),
        tuple("a\n ##[error]b"),
        (":", ":", "error::"),
    ],
)
def test_harmless_output_has_no_command(pieces: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    out = capture_output(*pieces, monkeypatch=monkeypatch)
    assert not [line for line in re.split(r"[\r\n]", out) if COMMAND.search(line)]
    assert out.replace("\N{ZERO WIDTH SPACE}", "") == "".join(pieces)
    assert capture_output(*pieces, monkeypatch=monkeypatch, job="") == "".join(pieces)


@pytest.mark.parametrize("text", ["a::b\n", "a: b\n:\n", "# a\n## b\n", "\x1b[1m::b", "", "no end"])
def test_harmless_leaves_other_text_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_output(text, monkeypatch=monkeypatch) == text


@pytest.mark.parametrize("arguments", [("table",), ("compare",), ("table", "--format", "markdown")])
def test_output_of_a_hostile_record_has_no_command(arguments: tuple[str, ...], tmp_path: Path) -> None:
    changed = change_verdict(
        BASE, 0, test=f"{BASE.verdicts[0].clause}/{HOSTILE}", message=f"a\n{HOSTILE}", reason=HOSTILE
    )
    series = replace(BASE.series, framework=HOSTILE, mode=f"\n{HOSTILE}")
    path = tmp_path / "run.json"
    write(path, replace(changed, series=series, notes=(HOSTILE, f"##[error]{HOSTILE}")))
    paths = [path, path] if arguments == ("compare",) else [path]
    result = conformance(*arguments, *paths, GITHUB_ACTIONS="true")
    assert "taken in" in result.output
    assert not [line for line in result.lines if COMMAND.search(line)]


def test_output_of_a_hostile_test_has_no_command(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path / "checkout", printing=PRINTING)
    result = judge(root=root, GITHUB_ACTIONS="true")
    stopped = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", result.output.splitlines()[0])
    assert stopped
    assert result.output.splitlines()[-1] == f"::{stopped[1]}::"
    assert result.output.count(stopped[1]) == 2
    assert "::error::printed" in result.output
    assert "stop-commands" not in judge(root=root).output


def test_run_lists_warnings_on_request(tmp_path: Path) -> None:
    root = copy_checkout(tmp_path / "checkout", warning=WARNING)
    result = judge(root=root)
    assert "1 warning" in result.lines[-1]
    assert "a framework's warning" not in result.output
    assert "a framework's warning" in judge("-rw", root=root).output
