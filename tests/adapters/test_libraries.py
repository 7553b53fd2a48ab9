"""Whose a failure is where several frameworks train by one library."""

from dataclasses import replace

import pytest

from results.record.model import Variant
from results.record.reading import ClauseText, Outcome, Record, TestVerdict
from results.show.portability import libraries, owners, words
from tests.support.reporting import record

P, F, K, U = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED
CLAUSE = "s.x"
KERAS = {"tf": "2.21.0+keras.3.15.1", "jax": "0.10.2+keras.3.15.1", "torch": "2.13.0+cpu.keras.3.15.1"}


def run(framework: str, *outcomes: Outcome, version: str = "", mode: str = "keras") -> Record:
    """A run with Keras and one test of the clause for each outcome."""
    verdicts = tuple(TestVerdict(f"{CLAUSE}/t{place}", CLAUSE, one) for place, one in enumerate(outcomes))
    clauses = {CLAUSE: ClauseText("MUST", "…", "", (), "s", 1)}
    variant = Variant(version or KERAS[framework])
    one = record(framework, {}, clauses=clauses, verdicts=verdicts, variant=variant)
    return replace(one, series=replace(one.series, mode=mode))


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("2.13.0+cpu.keras.3.15.1", {"keras"}),
        ("0.10.2+flax.0.12.8.optax.0.2.8.jmp.0.0.4", {"flax", "optax", "jmp"}),
        ("2.11.0+cu130", set()),
        ("2.13.0+cpu", set()),
        ("main", set()),
    ],
)
def test_libraries_are_read_from_the_local_label(version: str, named: set[str]) -> None:
    assert libraries(version) == named


EAGER = run("torch", P, version="2.13.0+cpu", mode="eager")


@pytest.mark.parametrize(
    ("records", "result"),
    [
        ([run("tf", F), run("jax", K), run("torch", K)], ["keras on every backend"]),
        ([run("tf", P), run("jax", P), run("torch", F)], ["keras on torch"]),
        ([run("tf", K), run("jax", P), run("torch", K)], ["keras on tf, torch"]),
        ([run("tf", F, P), run("torch", F, F)], ["keras on every backend", "keras on torch"]),
        ([run("tf", F), run("jax", U), run("torch", F)], ["keras on every backend"]),
        ([run("tf", U), run("torch", F)], []),
        ([run("tf", F), EAGER], []),
    ],
)
def test_owners_of_a_failure_are_the_library_or_its_backends(records: list[Record], result: list[str]) -> None:
    assert [str(owner) for owner in owners(records).get(CLAUSE, ())] == result


def test_words_of_a_clause_name_the_version_and_the_owner() -> None:
    word = words([run("tf", P), run("torch", F), EAGER])[CLAUSE]
    assert str(word) == "broken in torch 2.13.0+cpu.keras.3.15.1 (keras cpu); keras on torch"
    eager, keras = run("torch", F, version="2.13.0+cpu", mode="eager"), run("torch", P)
    assert str(words([eager, keras])[CLAUSE]) == "broken in torch 2.13.0+cpu (eager cpu)"
