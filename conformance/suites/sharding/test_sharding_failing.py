"""Failures of ranks: the others end when one rank stops. Security: no rank is reachable from outside."""

import os
import socket
from dataclasses import replace
from time import monotonic

import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.checks.sockets import listeners, listeners_below
from conformance.techniques.sharding import split_across_ranks
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.recipe import Adam, Ranks, Recipe
from frameworks.contract import Capability, RankFailed, RankGroup, Stop

QUICK_S = 10.0
BATCHES = [exact_batch(8, 7, 4, seed) for seed in range(2)]


def make_rank_group(subject: Subject) -> RankGroup:
    """Return two ranks, sharded at the mode's level."""
    return subject.rank_group(exact_linear(7, 4), Recipe(Adam(), ranks=subject.framework.ranks() or Ranks(2)))


def run_updates(rank_group: RankGroup) -> tuple[dict[str, Array], ...]:
    """Make two updates; return the training state of each rank."""
    for batch in BATCHES:
        rank_group.update(split_across_ranks(batch, 5, 3))
    return rank_group.states()


@clause("sharding.dead-rank")
@pytest.mark.parametrize(
    ("how", "rank"),
    [("exits", 0), ("exits", 1), ("raises", 1), ("one call fewer", 0)],
    ids=["rank-0-exits", "rank-1-exits", "rank-1-raises", "rank-0-makes-one-call-fewer"],
)
def test_dead_rank_ends_call_on_all_ranks(subject: Subject, verdict: Verdict, how: Stop, rank: int) -> None:
    need(subject, Capability.RANKS_LOST)
    rank_group = make_rank_group(subject)
    if how != "exits" and rank_group.limit_s > QUICK_S and subject.framework.ranks() is None:
        verdict.abstain(f"ranks wait {rank_group.limit_s:g} s for a missing one; modes with ranks judge this")
    expected = run_updates(rank_group)
    rank_group = make_rank_group(subject)
    rank_group.update(split_across_ranks(BATCHES[0], 5, 3))
    began = monotonic()
    try:
        answers = rank_group.fail_rank(split_across_ranks(BATCHES[1], 5, 3), rank, how)
    except Exception as error:
        seconds, outcome = monotonic() - began, type(error).__name__
    else:
        seconds, outcome = monotonic() - began, f"{sum(own is not None for own in answers)} answers"
    verdict.holds(
        not outcome.endswith("answers"), f"the call in which rank {rank} stops raises", outcome, "an error", "goes-on"
    )
    limit = rank_group.limit_s
    late = "within it" if seconds <= limit else f"after {seconds:.1f} s"
    verdict.equal(late, "within it", f"when the call ends, with a limit of {limit:g} s", "too-late")
    try:
        rank_group.states()
    except RankFailed:
        after = "RankFailed"
    else:
        after = "an answer"
    verdict.equal(after, "RankFailed", "errors of the remaining ranks afterwards", "goes-on")
    for index, (state, before) in enumerate(zip(run_updates(make_rank_group(subject)), expected, strict=True)):
        verdict.same_state(state, before, f"state that rank {index} of the next ranks trains to", "next-differs")


@clause("sharding.loopback")
def test_ranks_listen_only_on_loopback(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.RANKS_REPLICATED)
    ranks = replace(subject.framework.ranks() or Ranks(2), count=3)
    before = listeners(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as control, listeners_below(os.getpid()) as below:
        control_port = control.getsockname()[1]
        rank_group = subject.rank_group(exact_linear(7, 4), Recipe(Adam(), ranks=ranks))
        for batch in BATCHES:
            rank_group.update(split_across_ranks(batch, 3, 3, 2))
    if control_port not in {own.port for own in below}:
        verdict.abstain("this system has no /proc that shows listening sockets")
    outside = sorted({f"{own.address}:{own.port}" for own in below - before if not own.inside})
    verdict.equal(outside, [], "addresses of another interface that ranks listen on", "listens-outside")
