"""Whatever a framework does costs the test that it happens in, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.record.model import Record
from results.record.outcomes import Outcome
from results.record.reading import load
from tests.support.behaviours import BEHAVIOURS, DEADLY
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


def ended_with(folder: Path, which: str, *words: str) -> tuple[Ended, Record]:
    """A run of the behaviours, each followed by a test that finds all as it was."""
    root = checkout(folder, behaving=SUITE.format(which=which))
    record = root / "run.json"
    ended = judge(*words, f"--record={record}", "-p", "no:randomly", root=root)
    assert record.is_file(), ended.lines[-30:]
    return ended, load(record)


RUNS: dict[str, tuple[str, ...]] = {"one process": (), "a worker": (*WORKERS, "-n1", "--dist=load")}


@pytest.fixture(scope="module", params=["one process", pytest.param("a worker", marks=pytest.mark.slow)])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Record]:
    return ended_with(tmp_path_factory.mktemp("lively"), "BEHAVIOURS", *RUNS[request.param])


@pytest.fixture(scope="module")
def deadly(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Record]:
    words = (*WORKERS, "-n2", "--max-worker-restart=99", *TIMEOUTS, f"--timeout={hang_limit(3.0):g}", "-k", "step")
    return ended_with(tmp_path_factory.mktemp("deadly"), "DEADLY", *words)


def outcome(record: Record, step: str) -> tuple[Outcome, str]:
    """Outcome and message of a step's test."""
    (verdict,) = (verdict for verdict in record.verdicts if verdict.case == f"test_step[{step}]")
    return verdict.outcome, verdict.message


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_behaviour_costs_its_own_test(lively: tuple[Ended, Record], name: str) -> None:
    _, record = lively
    assert outcome(record, name)[0] is BEHAVIOURS[name].outcome, outcome(record, name)
    assert outcome(record, f"after {name}")[0] is Outcome.PASS, outcome(record, f"after {name}")


@pytest.mark.parametrize("name", DEADLY)
def test_a_death_costs_its_own_test(deadly: tuple[Ended, Record], name: str) -> None:
    ended, record = deadly
    assert ended.status == 1, "a death is never a success"
    assert outcome(record, name)[0] is DEADLY[name].outcome, outcome(record, name)
    assert outcome(record, f"after {name}")[0] is Outcome.PASS, outcome(record, f"after {name}")


def test_such_runs_are_whole_and_fail(lively: tuple[Ended, Record]) -> None:
    ended, record = lively
    assert (ended.status, record.status) == (1, "complete"), ended.lines[-10:]
    assert len(record.verdicts) == 2 * len(BEHAVIOURS) + 4
    assert sum(map(len, ended.lines)) < 3_000_000, "what is too long is cut"


def test_values_that_no_record_can_store_are_errors(lively: tuple[Ended, Record]) -> None:
    _, record = lively
    recorded = [verdict for verdict in record.verdicts if verdict.case.startswith("test_recorded")]
    assert [(verdict.outcome, verdict.signature) for verdict in recorded] == [(Outcome.ERROR, "cannot-be-stored")] * 3
