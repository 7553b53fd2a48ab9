"""The plugin: refusals in one line, and the outcome of every test."""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.test_ids import SUITES
from results.record.model import Measurement, Outcome, Record
from results.record.reading import load
from tests.support.misbehaving import BEHAVIOURS, DEADLY, Behaviour
from tests.support.suite_runs import (
    ROOT,
    TIMEOUTS,
    WORKERS,
    CommandResult,
    clauses_of,
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
