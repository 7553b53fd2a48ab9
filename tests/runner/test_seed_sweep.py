"""A stress tells every verdict that is not the same at all seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.runner.seed_sweep import changing, never_judged, summary_lines
from results.record.reading import Outcome, Record, TestVerdict
from tests.support.small_record import BASE
from tests.support.suite_runs import conformance


def record(seed: int, **outcomes: Outcome) -> Record:
    verdicts = tuple(TestVerdict(f"scaling.x/{name}", "scaling.x", outcome) for name, outcome in outcomes.items())
    return replace(BASE, seed=seed, verdicts=verdicts)


P, F, K, A = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.ABSTAIN


def test_the_same_verdicts_at_every_seed_are_silent() -> None:
    assert changing({seed: record(seed, a=P, b=K) for seed in range(3)}) == {}


def test_a_verdict_that_changes_is_told_with_its_seeds() -> None:
    changed = changing({0: record(0, a=P, b=P), 1: record(1, a=F, b=P), 2: record(2, a=P, b=P)})
    assert summary_lines(changed) == ["scaling.x/a: fail at 1 (1); pass at 2 (0, 2)"]


def test_a_verdict_that_is_bad_at_every_seed_is_told() -> None:
    assert summary_lines(changing({seed: record(seed, a=F) for seed in (4, 5)})) == ["scaling.x/a: fail at 2 (4, 5)"]


def test_what_abstains_at_every_seed_has_not_changed_and_is_named() -> None:
    records = {seed: record(seed, a=A, b=A if seed else P, c=P) for seed in range(2)}
    assert summary_lines(changing(records)) == ["scaling.x/b: pass at 1 (0); abstain at 1 (1)"]
    assert never_judged(records) == ["scaling.x/a"]


def test_a_test_that_a_seed_lacks_is_told() -> None:
    assert summary_lines(changing({0: record(0, a=P, b=P), 1: record(1, a=P)})) == ["scaling.x/b: pass at 1 (0)"]


@pytest.mark.parametrize(
    "words",
    [
        ["reference", "--seeds", "1"],
        ["reference", "--first", "-1"],
        ["reference", "--seeds", "2", "--", "-k", "no_such_test"],
        ["reference", "--seeds", "2", "--", "--nonsense"],
        ["reference", "--seeds", "2", "--modes", "nonsense"],
    ],
)
def test_bad_arguments_are_refused_in_one_line(words: list[str]) -> None:
    ended = conformance("stress", *words)
    assert ended.status == 2
    assert len(ended.errors.strip().splitlines()) == 1
