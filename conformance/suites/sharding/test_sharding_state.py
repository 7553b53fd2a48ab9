"""Resident state, saves and random streams of each rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.checks.evidence import same_bits
from conformance.oracle.errormodel import flat
from conformance.techniques.sharding import LEVEL, PAIRS, make_single_run, select_meshes, split_across_ranks, weights
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Batch, BatchNorm, Head, Heads, Model
from fixtures.models import digits_mlp, dropout_probe, exact_linear
from fixtures.recipe import SGD, Adam, DynamicScaling, Ranks, Recipe, Steps
from frameworks.contract import Capability, RankGroup

RUN = Recipe(SGD(2.0**-6, 0.5), schedule=Steps((1, 3), (1.0, 0.5, 0.25)))
OWN = ("random/", "buffer/")


def uneven() -> Model:
    """Return a model with layers of 35, 33 and 3 rows, which neither 2 nor 4 divides."""
    return digits_mlp((35, 33))


@clause("sharding.holds-its-part")
@LEVEL
def test_shards_add_up_to_one_copy(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    rank_group = subject.rank_group(uneven(), Recipe(Adam(), ranks=ranks))
    rank_group.update(split_across_ranks(digits_batch(8), 4, 4))
    size = sum(value.nbytes for value in make_single_run(subject, uneven(), Recipe()).parameters().values())
    copy = {"parameter": size, "gradient": size, "optimizer": 2 * size}
    by_rank = rank_group.resident_bytes()
    for kind, whole in copy.items():
        parts = [own[kind] for own in by_rank]
        if kind in ranks.sharded:
            verdict.equal(sum(parts), whole, f"bytes of {kind}s on both ranks together", "held-twice")
            verdict.holds(max(parts) < whole, f"no rank holds every {kind}", parts, f"below {whole}", "held-whole")
        else:
            verdict.holds(
                max(parts) <= whole, f"bytes of {kind}s on each rank", parts, f"at most {whole}", "held-twice"
            )


@clause("sharding.bytes-per-rank")
@LEVEL
def test_bytes_per_rank(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    rank_group = subject.rank_group(uneven(), Recipe(Adam(), ranks=ranks))
    rank_group.update(split_across_ranks(digits_batch(8), 4, 4))
    for rank, sizes in enumerate(rank_group.resident_bytes()):
        for kind, size in sizes.items():
            verdict.measure(f"{kind}.rank-{rank}", "bytes", [size])


def ready(subject: Subject, ranks: Ranks) -> RankGroup:
    """Return the ranks of the saved run."""
    return subject.rank_group(exact_linear(7, 4), recipe_of(subject, ranks))


def recipe_of(subject: Subject, ranks: Ranks) -> Recipe:
    """Return the recipe of the saved run, with a scaler if the framework has one."""
    scaled = subject.framework.declares(Capability.DYNAMIC_SCALING).supported
    scaling = DynamicScaling(initial=2.0**6, interval=3) if scaled else None
    return RUN.replace(ranks=ranks, scaling=scaling)


@clause("sharding.resumes-in-another-size")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_run_resumes_with_other_number_of_ranks(subject: Subject, verdict: Verdict, count: int, tmp_path: Path) -> None:
    need(subject, Capability.RANKS_REPLICATED, *([Capability.RANKS_RESHAPE] if count != 2 else []))
    *first, last = (exact_batch(8, 7, 4, seed) for seed in range(3))
    windows = [(batch,) for batch in (*first, last)]
    states: dict[str, tuple[dict[str, Array], dict[str, Array]]] = {}
    for ranks in select_meshes(subject, list(PAIRS.values())):
        saved = ready(subject, ranks)
        for batch in first:
            saved.update(split_across_ranks(batch, 5, 3))
        saved.save(tmp_path / ranks.level)
        before = saved.states()[0]
        saved.update(split_across_ranks(last, 4, 4))
        states[ranks.level] = before, saved.states()[0]
    for level, (before, after) in states.items():
        loaded = ready(subject, replace(PAIRS[level], count=count))
        loaded.restore(tmp_path / level)
        for rank, state in enumerate(loaded.states()):
            what = f"training state of rank {rank} of {count} right after the load ({level})"
            verdict.same_state(state, before, what, "load-differs", ignoring=OWN)
        loaded.update(split_across_ranks(last, *[8 // count] * count))
        envelope = subject.envelope(exact_linear(7, 4), recipe_of(subject, PAIRS[level]), windows)
        for rank, state in enumerate(loaded.states()):
            who = f"rank {rank} of {count}'s"
            counters = {n: a for n, a in after.items() if a.ndim == 0}
            restored = {n: state[n] for n in counters}
            verdict.same_state(restored, counters, f"{who} counters and scaler later ({level})", "goes-on-otherwise")
            distance, bound = envelope.parameters(flat(weights(state)))
            what = f"relative distance of {who} weights an update later ({level})"
            verdict.within(distance, bound, what, "goes-on-otherwise")


@clause("sharding.damaged-shard")
@LEVEL
@pytest.mark.parametrize("damage", ["missing", "empty", "half"])
def test_damaged_shard_is_refused_by_all_ranks(
    subject: Subject, verdict: Verdict, ranks: Ranks, damage: str, tmp_path: Path
) -> None:
    saved = ready(subject, ranks)
    saved.update(split_across_ranks(exact_batch(8, 7, 4), 5, 3))
    saved.save(tmp_path)
    whole = saved.states()
    loaded = ready(subject, ranks)
    refused = 0
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        loaded.update(
            split_across_ranks(exact_batch(8, 7, 4, seed=4), 4, 4)
        )  # a load that was not refused shows no other's part
        content, before = file.read_bytes(), loaded.states()
        if damage == "missing":
            file.unlink()
        else:
            file.write_bytes(content[: len(content) // 2] if damage == "half" else b"")
        what = f"{file.relative_to(tmp_path)} {damage}"
        try:
            loaded.restore(tmp_path)
        except ValueError:
            expected, moment, signature = before, "the refusal of", "refusal-changes"
            refused += 1
        else:
            expected, moment, signature = whole, "the load without", "damage-loaded"
        for rank, (state, then) in enumerate(zip(loaded.states(), expected, strict=True)):
            if not same_bits(state, then):  # a check a file would make records differ by how many files there are
                verdict.same_state(state, then, f"rank {rank}'s state after {moment} {what}", signature)
        file.write_bytes(content)
    verdict.holds(refused > 0, "some file is needed", f"{refused} refusals", "at least one", "damage-loaded")


@clause("sharding.buffers")
def test_observe_running_statistics_of_ranks(subject: Subject, verdict: Verdict) -> None:
    model = Model("normed", (BatchNorm(), Heads((Head("output", 1),))), (2,), (("output", "squared_error"),))
    inputs = np.arange(16, dtype=np.float32).reshape(8, 2)
    batch = Batch(inputs, {"output": np.zeros((8, 1), np.float32)})
    rank_group = subject.rank_group(model, Recipe(SGD(0.0), ranks=Ranks(2)))
    whole = make_single_run(subject, model, Recipe(SGD(0.0)))
    rank_group.update(split_across_ranks(batch, 4, 4))
    whole.update((batch,))
    of_all = whole.buffers()["0.mean"]
    first, second = (state["buffer/0.mean"] for state in rank_group.states())
    alike = "whole" if np.array_equal(first, of_all) else "rank-0"
    verdict.observe("statistics", alike if np.array_equal(first, second) else "own")


@clause("sharding.streams")
def test_observe_dropout_masks_of_ranks(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.RANKS_EMPTY)
    model, batch = dropout_probe(64), exact_batch(2, 64, 1)
    alone = batch.split(1, 1)
    masks = []
    for rank in range(2):
        rank_group = subject.rank_group(model, Recipe(SGD(0.0), ranks=Ranks(2)))
        empty = alone[rank].part(0, 0)
        windows = [(alone[rank],) if index == rank else (empty,) for index in range(2)]
        masks.append(rank_group.gradients(windows)[0]["1.output.weight"].ravel() != 0.0)
    verdict.observe("masks", "alike" if np.array_equal(masks[0], masks[1]) else "each its own")
