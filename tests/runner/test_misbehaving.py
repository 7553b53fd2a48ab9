"""Whatever a framework does costs the test that it happens in, and no other."""

from pathlib import Path

import pytest

from results.record.model import Outcome, Record
from results.record.reading import load
from tests.support.behaviours import BEHAVIOURS, DEADLY, Behaviour
from tests.support.suite_runs import TIMEOUTS, WORKERS, Ended, checkout, hang_limit, judge

SUITE = """
import time

import pytest

from conformance.checks.api import Subject, Verdict, clause
from fixtures.models import scalar
from tests.support import behaviours

BEGINNING = behaviours.surroundings()
STEPS = [step for name in behaviours.{which} for step in (name, f"after {{name}}")]
VALUES = {{"text_without_a_form": object(), "long_text": "x" * behaviours.BIG, "too_deep": [[]]}}
for _ in range(100):
    VALUES["too_deep"] = [VALUES["too_deep"]]


@clause("scaling.automaton")
@pytest.mark.parametrize("step", STEPS)
def test_step(subject: Subject, verdict: Verdict, step: str) -> None:
    if step in behaviours.{which}:
        verdict.equal(behaviours.{which}[step].act(), 1.0, "what it returned")
        return
    print("a line")
    verdict.equal(behaviours.surroundings(), BEGINNING, "surroundings")
    verdict.holds(bool(subject.trainer(scalar()).parameters()), "it trains")


@clause("scaling.automaton")
@pytest.mark.parametrize("name", VALUES)
def test_recorded(verdict: Verdict, name: str) -> None:
    verdict.observe("value", VALUES[name])
"""


def run_behaviours(folder: Path, which: str, *words: str) -> tuple[Ended, Record]:
    """A run of the behaviours, each followed by a test that finds all as it was."""
    root = checkout(folder, behaving=SUITE.format(which=which))
    record = root / "run.json"
    ended = judge(*words, f"--record={record}", "-p", "no:randomly", root=root)
    assert record.is_file(), ended.lines[-30:]
    return ended, load(record)


RUNS: dict[str, tuple[str, ...]] = {"one process": (), "a worker": (*WORKERS, "-n1", "--dist=load")}


def check_steps(record: Record, behaviours: dict[str, Behaviour]) -> None:
    """Asserts the outcome of each behaviour, and that the test after it passes."""
    verdicts = {verdict.case: verdict for verdict in record.verdicts}
    for name, behaviour in behaviours.items():
        own, after = verdicts[f"test_step[{name}]"], verdicts[f"test_step[after {name}]"]
        assert (own.outcome, after.outcome) == (behaviour.outcome, Outcome.PASS), (name, own.message, after.message)


@pytest.mark.parametrize("name", ["one process", pytest.param("a worker", marks=pytest.mark.slow)])
def test_judge_behaviour_that_leaves_the_process_alive_costs_its_own_test(tmp_path: Path, name: str) -> None:
    ended, record = run_behaviours(tmp_path, "BEHAVIOURS", *RUNS[name])
    check_steps(record, BEHAVIOURS)
    assert (ended.status, record.status) == (1, "complete"), ended.lines[-10:]
    assert len(record.verdicts) == 2 * len(BEHAVIOURS) + 4
    assert sum(map(len, ended.lines)) < 3_000_000, "what is too long is cut"
    recorded = [verdict for verdict in record.verdicts if verdict.case.startswith("test_recorded")]
    assert [(verdict.outcome, verdict.signature) for verdict in recorded] == [(Outcome.ERROR, "cannot-be-stored")] * 3


def test_judge_behaviour_that_ends_the_process_costs_its_own_test(tmp_path: Path) -> None:
    words = (*WORKERS, "-n2", "--max-worker-restart=99", *TIMEOUTS, f"--timeout={hang_limit(3.0):g}", "-k", "step")
    ended, record = run_behaviours(tmp_path, "DEADLY", *words)
    assert ended.status == 1, "a death is never a success"
    check_steps(record, DEADLY)
