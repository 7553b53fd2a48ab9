"""What a run reports: pytest's JUnit report has clause, outcome, signature, how to repeat a test, and its training.

At the end of a run of a user's own adapter are the clauses that fail with their rule, then counts with reasons. In a
job of GitHub Actions no line that is printed gives the job a command.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
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
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import BFLOAT16, Adam, DynamicScaling, Offload, Recipe, Recompute
from frameworks.reference import ReferenceFramework
from results.compare.comparison import compare_sets
from results.record.model import Outcome, Record, RunSetup, TestVerdict
from results.record.reading import write
from tests.runner.test_plugin import SUITE
from tests.support.recorded import BASE, CLAUSE, change_verdict
from tests.support.suite_runs import WORKERS, conformance, copy_checkout, judge, write_expectations

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
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_checkout(tmp_path_factory.mktemp("checkout"), small=SUITE)
    write_expectations(root, ("scaling.stays-finite/test_falls", "falls"))
    return root


@pytest.mark.parametrize("workers", [(), (*WORKERS, "--numprocesses=1")], ids=["one process", "workers"])
def test_junit_report_has_properties_of_every_test(small: Path, tmp_path: Path, workers: Sequence[str]) -> None:
    path = tmp_path / "junit.xml"
    judge("--framework=tests.support.misbehaving:Refusing", f"--junitxml={path}", *workers, root=small)
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


def test_junit_report_of_a_known_failure_has_its_link(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    judge("-k", "falls", f"--junitxml={path}", root=small)
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
