"""Runs of a user's training loop: right loops pass, and each mistake fails the clauses about it."""

import re
import sys
from pathlib import Path

import pytest

from results.record.model import UNJUDGED, Outcome, Record
from results.record.reading import load
from tests.support.own_loops import MISTAKES, RIGHT, SOURCE, replace_lines
from tests.support.suite_runs import ROOT, CommandResult, clauses_of, run

pytest.importorskip("torch")

WINDOWS = ("accumulation", "accumulation_windows")
SCALING = ("scaling_skip", "scaling_transparency")
SUITES = ROOT / "conformance" / "suites"
BAD = {outcome for outcome in Outcome if outcome.bad}
EXPECTED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "mean-of-means": (WINDOWS, {"accumulation.weighs-items"}),
    "last-window-divided-by-k": (WINDOWS, {"accumulation.remainder", "accumulation.weighs-items"}),
    "clip-before-unscale": (
        SCALING,
        {"scaling.is-transparent", "scaling.reports-true-loss", "scaling.unscales-before-clipping"},
    ),
    "schedule-steps-on-a-skip": (SCALING, {"scaling.skip-is-atomic", "scaling.step-count-follows-updates"}),
    "evaluation-mode-left-on": (WINDOWS, {"accumulation.evaluation-changes-nothing"}),
    "scaler-not-saved": (
        ("resume",),
        {"resume.bit-identical", "resume.load-has-no-side-effects", "resume.scaler-state"},
    ),
}
"""The suites that judge a mistake, and exactly the clauses that fail there."""


def judge_loop(folder: Path, source: str, *suites: str) -> tuple[CommandResult, Record]:
    """A loop judged by some suites from its own folder."""
    (folder / "my_training.py").write_text(source, encoding="utf-8")
    record = folder / "record.json"
    paths = [str(path) for name in suites for path in SUITES.glob(f"*/test_{name}.py")]
    assert len(paths) == len(suites)
    arguments = ["-q", "--device=cpu", "--framework=my_training:Loop", f"--record={record}", "--tb=no", "-rN"]
    return run([sys.executable, "-m", "pytest", *arguments, *paths], folder), load(record)


@pytest.mark.parametrize("mistake", EXPECTED)
def test_run_of_a_loop_with_a_mistake_fails_its_clauses(mistake: str, tmp_path: Path) -> None:
    suites, clauses = EXPECTED[mistake]
    completed, record = judge_loop(tmp_path, replace_lines(MISTAKES[mistake]), *suites)
    assert completed.status == 1, completed.lines
    assert clauses_of(record, BAD) == clauses
    assert clauses_of(record, {Outcome.ERROR}) == set()


def test_run_of_a_loop_that_zeroes_every_micro_batch_fails_accumulation(tmp_path: Path) -> None:
    _, record = judge_loop(tmp_path, replace_lines(MISTAKES["misplaced-zero-grad"]), "accumulation")
    failed = clauses_of(record, BAD)
    assert {"accumulation.each-counts-once", "accumulation.equals-full-batch"} <= failed
    assert {clause.partition(".")[0] for clause in failed} == {"accumulation"}


@pytest.mark.parametrize("right", RIGHT)
def test_run_of_a_right_loop_passes(right: str, tmp_path: Path) -> None:
    suites = (*WINDOWS, *SCALING, "resume", "resume_refusals", "trace", "averages", "recompute")
    completed, record = judge_loop(tmp_path, replace_lines(RIGHT[right]), *suites)
    # The gradients of sums of losses are larger than those of means, and overflow float16 sooner.
    overflows = {"scaling.scale-is-float32"} if right == "divides-in-step" else set()
    assert clauses_of(record, BAD) == overflows, completed.lines
    assert len(clauses_of(record, {Outcome.PASS})) > 40
    reasons = {verdict.reason for verdict in record.verdicts if verdict.outcome is Outcome.UNSUPPORTED}
    in_step = {"step changes gradients, so that those inside a pass are not those of the update"}
    attributes = ("average", "recompute", "static_scale") if right != "ignores-nothing" else ()
    assert reasons - in_step == {f"the loop ignores recipe.{name}" for name in attributes}
    assert bool(reasons & in_step) == (right == "divides-in-step")


def test_run_of_the_template_passes_schedules_without_momentum(tmp_path: Path) -> None:
    completed, record = judge_loop(tmp_path, SOURCE, "schedules")
    assert completed.status == 0, completed.lines
    cyclic = [v for v in record.verdicts if v.case.startswith("test_cyclic_schedule_changes_momentum[")]
    reasons = {verdict.outcome: verdict.reason for verdict in cyclic}
    assert reasons == {Outcome.UNSUPPORTED: "recipe.schedule has the rate's factor, and no momentum"}


def test_run_of_a_loop_prints_failing_clauses_and_what_does_not_apply(tmp_path: Path) -> None:
    completed, record = judge_loop(
        tmp_path, replace_lines(MISTAKES["clip-before-unscale"]), "scaling_transparency", "recompute"
    )
    text = " ".join(completed.output.partition(" result ==")[2].split())
    assert "clauses that fail: 3" in text
    assert (
        "scaling.unscales-before-clipping: 2 of 3 tests fail rule: Clipping, and every other transformation of"
        " gradients, receives unscaled gradients."
    ) in text
    assert "source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html fail: " in text
    assert re.search(r"fail: reported norm of the gradient \(3, 4\): got 5120\.0, want 5\.0 repeat: python -m", text)
    refused = sum(verdict.outcome in UNJUDGED for verdict in record.verdicts)
    assert re.search(rf"\d+ tests pass, {refused} do not apply \(.*\d+: the loop ignores recipe\.recompute", text)


def test_run_of_the_tutorial_fails_every_clause_that_it_names(tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "own-loop.md").read_text("utf-8").partition("\n## Libraries on top\n")[0]
    (source,) = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    changes = [lines for mistake, lines in MISTAKES.items() if mistake != "mean-of-means"]
    assert source == replace_lines(*changes)
    _, record = judge_loop(tmp_path, source, *WINDOWS, *SCALING, "resume")
    named = set(re.findall(r"`((?:accumulation|scaling|resume)\.[a-z-]+)`", tutorial))
    assert len(named) == len(MISTAKES)
    assert named <= clauses_of(record, BAD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("self.optimizer = recipe", "optimizer = recipe"), "setup left no torch.optim.Optimizer on self"),
        (
            ("losses = self.network(inputs, targets)", 'losses = self.network(inputs)["output"]'),
            "want a call of network(inputs, targets)",
        ),
        (("def step(self)", "def step(self, other)"), "missing 1 required positional argument"),
    ],
)
def test_run_of_a_loop_that_cannot_train_is_refused_in_one_line(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "my_training.py").write_text(replace_lines((change,)), encoding="utf-8")
    arguments = ["-m", "pytest", "-q", "--framework=my_training:Loop", str(SUITES / "resume/test_resume.py")]
    completed = run([sys.executable, *arguments], tmp_path)
    assert completed.status == 2
    assert len(completed.lines) == 1, completed.lines
    assert "loop my_training:Loop cannot train: " in completed.lines[0]
    assert message in completed.lines[0]
