"""Ranks: the update equals that of a run without ranks on all samples."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, narrow, need
from conformance.oracle.errormodel import flat
from conformance.techniques.sharding import (
    FOURS,
    LEVEL,
    RANK,
    list_by_rank,
    make_single_run,
    select_meshes,
    split_across_ranks,
    weights,
    windows_of,
)
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.model import Batch, Window
from fixtures.models import digits_mlp, exact_linear, exact_stack, two_heads
from fixtures.recipe import SGD, Adam, Ranks, Recipe, Steps
from frameworks.contract import Capability, RankGroup

EXACT = Recipe(SGD(2.0**-4))


@clause("sharding.equals-whole")
@LEVEL
def test_two_ranks_match_whole_batch(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    model, batch = exact_linear(7, 4), exact_batch(8, 7, 4)
    rank_group = subject.rank_group(model, EXACT.replace(ranks=ranks))
    updates = rank_group.update(split_across_ranks(batch, 5, 3))
    whole = subject.oracle(model, EXACT)
    whole.update((batch,))
    expected = narrow(whole.parameters())
    verdict.equal([update.skipped for update in updates], [False, False], "skipped on each rank", "skipped")
    for rank, state in enumerate(rank_group.states()):
        verdict.same_state(weights(state), expected, f"weights that rank {rank} sees", "update-differs")


@clause("sharding.equals-whole")
def test_four_ranks_match_whole_batch(subject: Subject, verdict: Verdict) -> None:
    model, batch = exact_linear(7, 4), exact_batch(8, 7, 4)
    whole = subject.oracle(model, EXACT)
    whole.update((batch,))
    expected = narrow(whole.parameters())
    meshes = select_meshes(subject, FOURS)
    if not meshes:
        need(subject, Capability.RANKS_REPLICATED)
    for ranks in meshes:
        rank_group = subject.rank_group(model, EXACT.replace(ranks=ranks))
        rank_group.update(split_across_ranks(batch, 3, 2, 2, 1))
        for rank, state in enumerate(rank_group.states()):
            what = f"weights that rank {rank} of {ranks.label} sees"
            verdict.same_state(weights(state), expected, what, "update-differs")
        rank_group.close()


@clause("sharding.equals-whole")
@LEVEL
def test_two_ranks_match_oracle(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    model = digits_mlp((33, 15), "tanh")
    recipe = Recipe(Adam(2.0**-7, epsilon=1.0), clip=0.25, ranks=ranks)
    batches = [digits_batch(16, 16 * i) for i in range(4)]
    rank_group = subject.rank_group(model, recipe)
    updates = [rank_group.update(split_across_ranks(batch, 8, 8)) for batch in batches]
    envelope = subject.envelope(model, recipe, [(batch,) for batch in batches])
    losses = np.array([np.mean([own.loss for own in update]) for update in updates])
    worst, bound, index = envelope.worst_loss(losses)
    verdict.within(worst, bound, f"distance of the loss from float64's at update {index}", "loss-beyond-envelope")
    for rank, state in enumerate(rank_group.states()):
        distance, bound = envelope.parameters(flat(weights(state)))
        verdict.within(distance, bound, f"relative distance of rank {rank}'s weights", "parameters-beyond-envelope")


@clause("sharding.mean-over-items")
@LEVEL
@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (4, 0), (0, 4)], ids=str)
def test_items_are_weighted_equally_across_ranks(
    subject: Subject, verdict: Verdict, ranks: Ranks, sizes: tuple[int, int]
) -> None:
    if 0 in sizes:
        need(subject, Capability.RANKS_EMPTY)
    batch = exact_batch(4)
    rank_group = subject.rank_group(exact_linear(), EXACT.replace(ranks=ranks))
    expected = narrow(subject.oracle(exact_linear(), EXACT).gradients((batch,)))
    for rank, gradients in enumerate(rank_group.gradients(split_across_ranks(batch, *sizes))):
        verdict.same_gradients(gradients, expected, f"gradient that rank {rank} has of {sizes} items", "other-mean")


@clause("sharding.mean-over-items")
@LEVEL
def test_items_are_weighted_equally_in_unevenly_split_windows(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    first, second = exact_batch(8).split(4, 4)
    rank_group = subject.rank_group(exact_linear(), EXACT.replace(accumulation=2, ranks=ranks))
    windows = windows_of(split_across_ranks(first, 3, 1), split_across_ranks(second, 2, 2))
    expected = narrow(subject.oracle(exact_linear(), EXACT.replace(accumulation=2)).gradients((first, second)))
    for rank, gradients in enumerate(rank_group.gradients(windows)):
        verdict.same_gradients(gradients, expected, f"gradient that rank {rank} has of 5 + 3 items", "other-mean")


@clause("sharding.mean-over-items")
@LEVEL
@RANK
def test_rank_without_items_contributes_zeros(subject: Subject, verdict: Verdict, ranks: Ranks, rank: int) -> None:
    rank_group = subject.rank_group(exact_linear(), Recipe(SGD(1.0), ranks=ranks))
    run = make_single_run(subject, exact_linear(), Recipe())
    rank_group.apply_gradients([[gradients] for gradients in list_by_rank(ranks, rank, {}, full(run, 0.5))])
    expected = {name: value - np.float32(0.25) for name, value in run.parameters().items()}
    for index, state in enumerate(rank_group.states()):
        verdict.same_state(weights(state), expected, f"weights that rank {index} has", "other-mean")


@clause("sharding.start")
@LEVEL
def test_every_rank_starts_from_given_weights(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    start = {name: value + np.float32(0.5) for name, value in exact_stack().weights(3).items()}
    rank_group = subject.rank_group(exact_stack(), EXACT.replace(ranks=ranks), start)
    for rank, state in enumerate(rank_group.states()):
        verdict.same_state(weights(state), start, f"weights that rank {rank} starts from", "other-start")


@clause("sharding.one-reduction-per-window")
@LEVEL
def test_window_is_reduced_once(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = EXACT.replace(accumulation=4, ranks=ranks)
    batches = exact_batch(8).into(4)
    rank_group = subject.rank_group(exact_stack(), recipe)
    rank_group.update(windows_of(*[split_across_ranks(batch, 1, 1) for batch in batches]))
    by_one = subject.rank_group(exact_stack(), recipe)
    for batch in batches:
        by_one.accumulate(batch.split(1, 1), 8)
    by_one.apply()
    for rank, (once, often) in enumerate(zip(rank_group.states(), by_one.states(), strict=True)):
        what = f"weights of rank {rank} from one reduction, compared with four"
        verdict.same_state(weights(once), weights(often), what, "update-differs")


@clause("sharding.one-reduction-per-window")
@LEVEL
def test_every_gradient_is_reduced_once_per_window(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    need(subject, Capability.RANKS_COLLECTIVES)
    rank_group = subject.rank_group(exact_stack(), EXACT.replace(accumulation=4, ranks=ranks))
    windows = windows_of(*[split_across_ranks(batch, 1, 1) for batch in exact_batch(8).into(4)])
    rank_group.update(windows)
    rank_group.collectives()
    rank_group.update(windows)
    parameters = len(exact_stack().parameter_shapes())
    counts = [counted["gradients"] for counted in rank_group.collectives()]
    verdict.equal(counts, [parameters] * 2, "reductions of a parameter's gradient on each rank", "reduced-too-often")


@clause("sharding.accumulates")
@LEVEL
def test_different_micro_batches_accumulate_in_every_window(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = Recipe(SGD(0.0), accumulation=3)
    rank_group = subject.rank_group(exact_linear(), recipe.replace(ranks=ranks))
    whole = subject.oracle(exact_linear(), recipe)
    for number in range(2):
        batches = [exact_batch(size, seed=10 * number + size) for size in (4, 2, 2)]
        windows = windows_of(*[split_across_ranks(batch, len(batch) - 1, 1) for batch in batches])
        expected = narrow(whole.gradients(tuple(batches)))
        for rank, gradients in enumerate(rank_group.gradients(windows)):
            what = f"gradient of window {number + 1} that rank {rank} has"
            verdict.same_gradients(gradients, expected, what, "window-differs")
        rank_group.update(windows)


@clause("sharding.every-backward-counts")
@LEVEL
def test_every_backward_pass_counts_on_every_rank(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = EXACT.replace(separate_losses=True)
    batch = exact_batch(4, 8, 2)
    both = Batch(batch.inputs, {"a": batch.targets["output"], "b": batch.targets["output"][::-1].copy()})
    rank_group = subject.rank_group(two_heads(), recipe.replace(ranks=ranks), exact_heads())
    expected = make_single_run(subject, two_heads(), recipe, exact_heads()).gradients((both,))
    judge_or_raise(verdict, rank_group, split_across_ranks(both, 2, 2), expected, "backward-left-out")


def exact_heads() -> dict[str, Array]:
    """Return weights of the two-head model, all of them powers of two or zero."""
    rng = np.random.default_rng(7)
    shapes = two_heads().parameter_shapes()
    return {name: rng.choice([-0.5, 0.5, 0.0], shape).astype(np.float32) for name, shape in shapes.items()}


def judge_or_raise(
    verdict: Verdict, rank_group: RankGroup, windows: list[Window], expected: dict[str, Array], signature: str
) -> None:
    """Check that every rank has this gradient, or that the run refuses with a library's exception."""
    try:
        by_rank = rank_group.gradients(windows)
    except (RuntimeError, ValueError) as error:
        verdict.holds(True, "the framework raises", type(error).__name__, "an exception, or the whole gradient")
        return
    for rank, gradients in enumerate(by_rank):
        verdict.same_gradients(gradients, expected, f"gradient that rank {rank} has", signature)


@clause("sharding.missing-gradient")
@LEVEL
def test_parameter_used_by_one_rank_is_updated_on_all(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    both = [exact_batch(2, 8, 2, seed) for seed in range(2)]
    batches = [Batch(b.inputs, {name: b.targets["output"]}) for name, b in zip("ab", both, strict=True)]
    rank_group = subject.rank_group(two_heads(), EXACT.replace(ranks=ranks), exact_heads())
    window = tuple(batches)
    expected = make_single_run(subject, two_heads(), EXACT.replace(accumulation=2), exact_heads()).gradients(window)
    judge_or_raise(verdict, rank_group, [(batch,) for batch in batches], expected, "kept-to-itself")


@clause("sharding.schedule-counts-updates")
@LEVEL
def test_learning_rates_match_single_process(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = Recipe(SGD(0.5), schedule=Steps((1, 2, 3), (1.0, 0.5, 0.25, 0.125)))
    one = subject.oracle(exact_linear(), recipe)
    rank_group = subject.rank_group(exact_linear(), recipe.replace(ranks=ranks))
    gradient = narrow(full(one, 2.0**-6))
    expected, rates = [], []
    for _ in range(5):
        expected.append(one.apply_gradients(gradient).learning_rate)
        rates.append([update.learning_rate for update in rank_group.apply_gradients([[gradient]] * 2)])
    verdict.equal(rates, [[rate] * 2 for rate in expected], "rate of five updates on each rank", "rate-differs")
