"""One word a clause across frameworks: portable, differs, broken in X since V, and the words for the rest."""

from dataclasses import replace
from typing import Any

import pytest

from results.record.model import Variant
from results.record.reading import ClauseText, Observation, Outcome, Record, TestVerdict
from results.show.portability import Portability, listed, words
from tests.support.reporting import record

P, F, K, U, N = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED
CLAUSE = "s.x"


def run(framework: str, *outcomes: Outcome, version: str = "1", mode: str = "m", revision: int = 1) -> Record:
    """A run with one test of the clause for each outcome."""
    clauses = {CLAUSE: ClauseText("MUST", "…", "", (), "s", revision)}
    verdicts = tuple(TestVerdict(f"{CLAUSE}/t{i}", CLAUSE, one) for i, one in enumerate(outcomes))
    one = record(framework, {}, clauses=clauses, verdicts=verdicts, variant=Variant(version))
    return replace(one, series=replace(one.series, mode=mode))


def word(*records: Record) -> str:
    """What is said of the clause."""
    return str(words(records)[CLAUSE])


@pytest.mark.parametrize(
    ("torch", "tf", "said"),
    [
        ((P,), (P,), "portable"),
        ((P, U), (P,), "portable"),
        ((P,), (Outcome.FIXED,), "portable"),
        ((P,), (U,), "differs"),
        ((U,), (U,), "unsupported"),
        ((P,), (N,), "held"),
        ((U,), (N,), "unsupported"),
        ((N,), (N, U), "not offered"),
        ((F,), (N,), "broken in torch 1"),
        ((Outcome.ABSTAIN,), (N,), "not judged"),
        ((P,), (Outcome.ABSTAIN,), "not judged"),
        ((P, Outcome.UNSTABLE), (U,), "not judged"),
        ((P,), (P, K), "broken in tf 1"),
        ((F,), (K,), "broken in tf 1, torch 1"),
        ((Outcome.ABSTAIN,), (Outcome.CRASH,), "broken in tf 1"),
        ((P,), (Outcome.MISDECLARED,), "broken in tf 1"),
        ((P,), (K, Outcome.FIXED), "broken in tf 1"),
        ((P,), (), "held"),
    ],
)
def test_two_frameworks_give_a_word(torch: tuple[Outcome, ...], tf: tuple[Outcome, ...], said: str) -> None:
    assert word(run("torch", *torch), run("tf", *tf)) == said


def test_the_reference_counts_only_where_nothing_else_is_there() -> None:
    assert word(run("torch", P), run("tf", P), run("reference", F)) == "portable"
    assert word(run("torch", P), run("reference", P)) == "held"
    assert word(run("reference", F)) == "broken in reference 1"


def test_runs_of_one_version_are_taken_together() -> None:
    eager, static, torch = run("paddle", P, mode="eager"), run("paddle", K, mode="static"), run("torch", P)
    assert word(eager, static, torch) == "broken in paddle 1 (static cpu)"
    assert word(eager, run("paddle", U, mode="static"), torch) == "portable"
    for refused in (U, N):
        assert word(run("paddle", refused, mode="eager"), static, torch) == "broken in paddle 1", "no other run has it"


def test_only_the_newest_version_of_a_framework_is_judged() -> None:
    old = run("torch", F, version="2.9.0+cpu")
    assert word(old, run("torch", P, version="2.10.0"), run("tf", P)) == "portable"
    assert word(old, run("torch", P, version="not a version"), run("tf", P)) == "broken in torch 2.9.0+cpu"


@pytest.mark.parametrize(
    ("older", "said"),
    [
        ({"1.0": (P,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": (F,)}, "since 1.0"),
        ({"0.8": (P,), "0.9": (F,), "1.0": (P,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": (U,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": ()}, "since 2.0"),
        ({"0.9": (F,), "1.0": (F,)}, "2.0"),
        ({"0.9": (U,), "1.0": ()}, "2.0"),
    ],
)
@pytest.mark.parametrize("forward", [True, False])
def test_it_began_with_the_first_record_that_breaks_after_one_that_held(
    older: dict[str, tuple[Outcome, ...]], said: str, forward: bool
) -> None:
    records = [run("torch", *outcomes, version=version) for version, outcomes in older.items()]
    records = [*records, run("torch", K, version="2.0")]
    assert word(*(records if forward else records[::-1])) == f"broken in torch {said}"


def test_what_was_not_the_same_test_tells_nothing_of_the_beginning() -> None:
    new = run("torch", P, F, version="2.0")
    assert word(run("torch", P, P, version="1.0"), new) == "broken in torch since 2.0"
    assert word(run("torch", P, version="1.0"), new) == "broken in torch 2.0", "the test that fails is new"
    assert word(run("torch", P, P, version="1.0", revision=2), new) == "broken in torch 2.0"
    assert word(run("torch", P, P, version="1.0", mode="other"), new) == "broken in torch 2.0"
    assert word(run("torch", F, P, version="1.0"), new) == "broken in torch 2.0", "it was broken in another way"
    assert word(run("tf", P, P, version="1.0"), new) == "broken in torch 2.0"


def test_runs_that_began_apart_give_the_oldest_and_one_unknown_gives_none() -> None:
    def both(version: str, eager: Outcome, graph: Outcome) -> list[Record]:
        return [run("tf", eager, version=version, mode="eager"), run("tf", graph, version=version, mode="graph")]

    assert word(*both("1", P, P), *both("2", F, P), *both("3", F, F)) == "broken in tf since 2"
    assert word(*both("1", P, F), *both("2", F, F)) == "broken in tf 2"


@pytest.mark.parametrize(
    ("level", "torch", "tf", "said"),
    [
        ("OBSERVATION", {"k": 1}, {"k": 1}, "portable"),
        ("OBSERVATION", {"k": 1}, {"k": 2}, "differs"),
        ("OBSERVATION", {"k": 1}, {"j": 2}, "portable"),
        ("OBSERVATION", {"k": {"a": 1, "b": [1]}}, {"k": {"a": 1, "b": [2]}}, "differs"),
        ("OBSERVATION", {"k": {"reason": "x"}}, {"k": {"reason": "y"}}, "portable"),
        ("MUST", {"k": 1}, {"k": 2}, "portable"),
    ],
)
def test_an_observation_differs_where_the_same_thing_was_seen_to_be_another(
    level: str, torch: dict[str, Any], tf: dict[str, Any], said: str
) -> None:
    def record_of(framework: str, values: dict[str, Any]) -> Record:
        observations = tuple(Observation(CLAUSE, key, "", value) for key, value in values.items())
        clauses = {CLAUSE: ClauseText(level, "…", "", (), "s")}
        return replace(run(framework, P), observations=observations, clauses=clauses)

    assert word(record_of("torch", torch), record_of("tf", tf), record_of("reference", {"k": 7})) == said


def test_every_kind_has_a_meaning_and_the_list_says_what_it_uses() -> None:
    assert all(kind.meaning for kind in Portability)
    lines = list(listed([run("torch", P), run("tf", U)]))
    assert lines == ["s.x  differs", "", "1 clause: 1 differs", f"differs: {Portability.DIFFERS.meaning}"]
    assert list(listed([]))[-1] == "0 clauses: none judged"


def test_hostile_names_stay_in_their_line() -> None:
    evil = run("a\nb\x1b[2J" + "x" * 900, F, version="1\n2")
    first, *_ = listed([replace(evil, series=replace(evil.series, mode="\r"))])
    assert first.isprintable()
    assert len(first) < 600
