"""Ranks decide together: same skip, scale, norm and sum format on all ranks."""

import math

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients
from conformance.oracle.bound import Bound
from conformance.techniques.sharding import (
    FOURS,
    LEVEL,
    OWN,
    RANK,
    list_by_rank,
    make_single_run,
    select_meshes,
    split_across_ranks,
)
from fixtures.data import exact_batch
from fixtures.models import exact_linear, exact_stack, scalar
from fixtures.recipe import BFLOAT16, FLOAT32, MASTERED, SGD, Adam, DynamicScaling, Precision, Ranks, Recipe
from frameworks.contract import Capability, RankGroup, Update

SCALED = Recipe(Adam(2.0**-6), scaling=DynamicScaling(initial=16.0, interval=3))
TINY = 2.0**-9
FORMATS = {"float32": 1.0 + TINY, "bfloat16": 1.0}


def make_rounding_bound(times: float) -> Bound:
    """Return the bound of the relative change by `times` roundings to float32."""
    return Bound(times * 2.0**-24, {"method": "roundings to float32", "count": times})


def same_on_all(verdict: Verdict, rank_group: RankGroup, when: str) -> None:
    """Check that every rank has the state of rank 0."""
    first, *others = rank_group.states()
    for rank, state in enumerate(others, 1):
        verdict.same_state(
            state, first, f"training state of rank {rank}, compared with rank 0, {when}", "ranks-differ", ignoring=OWN
        )


def check_decisions(verdict: Verdict, updates: tuple[Update, ...], scale: float, good: int, *, skipped: bool) -> None:
    """Check that every rank has this skip decision, scale and counter."""
    measured = [(update.skipped, update.scale_after, update.good_steps) for update in updates]
    expected = [(skipped, scale, good)] * len(updates)
    verdict.equal(measured, expected, "skip, next scale and counter on each rank", "decided-apart")


@clause("sharding.replicas-equal")
@LEVEL
def test_replicas_stay_equal(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = Recipe(Adam(2.0**-6), clip=0.5, ranks=ranks)
    if subject.framework.declares(Capability.AVERAGE).supported:
        recipe = recipe.replace(average=0.75)
    if subject.framework.declares(Capability.DYNAMIC_SCALING).supported:
        recipe = recipe.replace(scaling=SCALED.scaling)
    rank_group = subject.rank_group(exact_stack(), recipe)
    gradient = make_single_run(subject, exact_stack(), Recipe())
    for number in range(3):
        rank_group.update(split_across_ranks(exact_batch(8, seed=number), 5, 3))
        same_on_all(verdict, rank_group, f"after update {number + 1}")
        if recipe.scaling is not None:
            rank_group.apply_gradients(
                [[gradients] for gradients in list_by_rank(ranks, 1, full(gradient, math.inf), full(gradient, 1.0))]
            )
            same_on_all(verdict, rank_group, f"after skip {number + 1}")


@clause("sharding.one-decision")
@LEVEL
@RANK
def test_overflow_on_one_rank_skips_on_all(subject: Subject, verdict: Verdict, ranks: Ranks, rank: int) -> None:
    rank_group = subject.rank_group(exact_stack(), SCALED.replace(ranks=ranks))
    run = make_single_run(subject, exact_stack(), Recipe())
    check_decisions(verdict, rank_group.apply_gradients([[full(run, 1.0)]] * 2), 16.0, 1, skipped=False)
    before = rank_group.states()
    fed = [
        [gradients] for gradients in list_by_rank(ranks, rank, spike_gradients(run, math.inf, base=1.0), full(run, 1.0))
    ]
    check_decisions(verdict, rank_group.apply_gradients(fed), 8.0, 0, skipped=True)
    for index, (now, then) in enumerate(zip(rank_group.states(), before, strict=True)):
        what = f"rank {index}'s state but the scaler over the skip"
        verdict.same_state(now, then, what, "skip-moved", ignoring=("scaler/", "random/"))
    check_decisions(verdict, rank_group.apply_gradients([[full(run, 1.0)]] * 2), 8.0, 1, skipped=False)
    same_on_all(verdict, rank_group, "after the next update")


@clause("sharding.one-decision")
@LEVEL
@RANK
def test_overflow_in_one_shard_skips_on_all(subject: Subject, verdict: Verdict, ranks: Ranks, rank: int) -> None:
    need(subject, Capability.EXPLICIT_UNSCALE)
    rank_group = subject.rank_group(exact_stack(), SCALED.replace(ranks=ranks))
    run = make_single_run(subject, exact_stack(), Recipe())
    inject = list_by_rank(ranks, rank, full(run, math.inf), full(run, 0.0))
    if ranks.level in ("replicated", "optimizer"):
        inject = [full(run, math.inf)] * 2
    updates = rank_group.apply_gradients([[full(run, 1.0)]] * 2, inject=inject)
    if subject.conventions.scaler.latched:  # what is added after the check is not looked for
        check_decisions(verdict, updates, 16.0, 1, skipped=False)
    else:
        check_decisions(verdict, updates, 8.0, 0, skipped=True)
    same_on_all(verdict, rank_group, "after the update")


@clause("sharding.one-decision")
@LEVEL
@pytest.mark.parametrize("index", [0, 2], ids=["first", "last"])
def test_overflow_in_one_micro_batch_of_one_rank_skips_on_all(
    subject: Subject, verdict: Verdict, ranks: Ranks, index: int
) -> None:
    recipe = SCALED.replace(accumulation=3, ranks=ranks)
    rank_group, run = subject.rank_group(exact_stack(), recipe), make_single_run(subject, exact_stack(), Recipe())
    windows = [[full(run, 1.0) for _ in range(3)] for _ in range(2)]
    windows[1][index] = spike_gradients(run, -math.inf, base=1.0)
    updates = rank_group.apply_gradients(windows)
    if subject.conventions.nonfinite_micro_batch == "drop-micro-batch":
        verdict.equal(len({update.skipped for update in updates}), 1, "how many decisions there are", "decided-apart")
    else:
        check_decisions(verdict, updates, 8.0, 0, skipped=True)
    same_on_all(verdict, rank_group, "after the window")


@clause("sharding.global-clip")
@LEVEL
def test_clipping_norm_is_global(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    recipe = Recipe(SGD(1.0), clip=1.25)
    rank_group = subject.rank_group(scalar(0.0), recipe.replace(ranks=ranks))
    names = list(scalar().parameter_shapes())
    three, four = (
        {names[i]: np.full(scalar().parameter_shapes()[names[i]], v, np.float32)} for i, v in ((0, 3), (1, 4))
    )
    nothing = [{name: np.zeros(shape, np.float32) for name, shape in scalar().parameter_shapes().items()}] * 2
    updates = rank_group.apply_gradients([[{**nothing[0], **three}], [{**nothing[1], **four}]])
    norms = [update.gradient_norm for update in updates]
    if any(norm is not None for norm in norms):
        verdict.equal(norms, [2.5, 2.5], "norm of (1.5, 2) that each rank reports", "norm-of-one-rank")
    coefficient = 1.25 / (2.5 + subject.conventions.clip_epsilon)
    for rank, state in enumerate(rank_group.states()):
        for name, mean in zip(names, (1.5, 2.0), strict=True):
            error = abs(float(state[f"parameter/{name}"].ravel()[0]) + mean * coefficient)
            verdict.within(
                error, make_rounding_bound(4), f"distance of {name} that rank {rank} has", "clipped-otherwise"
            )


@clause("sharding.global-clip")
@LEVEL
def test_shards_are_clipped_by_global_norm(subject: Subject, verdict: Verdict, ranks: Ranks) -> None:
    model, limit = exact_linear(8, 4), 1.0
    recipe = Recipe(SGD(1.0), clip=limit)
    rank_group = subject.rank_group(model, recipe.replace(ranks=ranks))
    before = make_single_run(subject, model, recipe)
    start = before.parameters()
    size = sum(value.size for value in start.values())
    share = 1.25 * limit / math.sqrt(size)  # a half's norm is 0.88, the whole's 1.25
    updates = rank_group.apply_gradients([[full(before, share)]] * 2)
    of_the_norm = size / 2 + 2  # the sum of squares, halved by its root
    of_an_update = 4 + max(float(np.abs(value).max()) for value in start.values()) / share
    for rank, (update, state) in enumerate(zip(updates, rank_group.states(), strict=True)):
        if (norm := update.gradient_norm) is not None:
            error, what = abs(norm / (1.25 * limit) - 1.0), f"relative distance of the norm that rank {rank} reports"
            verdict.within(error, make_rounding_bound(of_the_norm), what, "norm-of-a-shard")
        moved = math.sqrt(sum(float(np.sum((state[f"parameter/{n}"] - a) ** 2.0)) for n, a in start.items()))
        what = f"relative distance of the length of rank {rank}'s update from the limit"
        verdict.within(
            abs(moved / limit - 1.0), make_rounding_bound(of_the_norm + of_an_update), what, "clipped-by-a-shard"
        )


@clause("sharding.reduces-in-the-asked-format")
@LEVEL
@pytest.mark.parametrize("name", FORMATS)
def test_small_gradient_survives_reduction(subject: Subject, verdict: Verdict, ranks: Ranks, name: str) -> None:
    mesh = Ranks(ranks.count, ranks.level, reduce=name)  # type: ignore[arg-type]
    rank_group = subject.rank_group(scalar(0.0), Recipe(SGD(1.0), ranks=mesh))
    run = make_single_run(subject, scalar(0.0), Recipe())
    rank_group.apply_gradients([[full(run, 2.0)], [full(run, 2.0 * TINY)]])
    for rank, state in enumerate(rank_group.states()):
        sums = {n: -a.astype(np.float64) for n, a in state.items() if n.startswith("parameter/")}
        expected = {n: np.full_like(a, FORMATS[name]) for n, a in sums.items()}
        verdict.same_state(sums, expected, f"sum that rank {rank} has of 1 and 2^-9 in {name}", "other-format")


@clause("sharding.reduces-in-the-asked-format")
@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=lambda p: p.label)
def test_small_gradient_survives_reduction_over_a_mesh(
    subject: Subject, verdict: Verdict, precision: Precision
) -> None:
    meshes = select_meshes(subject, FOURS)
    if not meshes:
        need(subject, *Capability.of_ranks(FOURS[0]))
    run = make_single_run(subject, scalar(0.0), Recipe())
    for ranks in meshes:
        rank_group = subject.rank_group(scalar(0.0), Recipe(SGD(1.0), precision, ranks=ranks))
        rank_group.apply_gradients([[full(run, 4.0)], *[[full(run, 0.0)]] * (ranks.count - 2), [full(run, 4.0 * TINY)]])
        for rank, state in enumerate(rank_group.states()):
            sums = {n: -a.astype(np.float64) for n, a in state.items() if n.startswith("parameter/")}
            expected = {n: np.full_like(a, FORMATS["float32"]) for n, a in sums.items()}
            what = f"sum that rank {rank} of {ranks.label} has of 1 and 2^-9"
            verdict.same_state(sums, expected, what, "other-format")


@clause("sharding.masters-stay-wide")
@LEVEL
@pytest.mark.parametrize("precision", MASTERED, ids=lambda precision: precision.label)
def test_sharded_masters_and_moments_stay_float32(
    subject: Subject, verdict: Verdict, ranks: Ranks, precision: Precision
) -> None:
    recipe = Recipe(Adam(2.0**-14), precision, ranks=ranks)
    rank_group, run = subject.rank_group(exact_stack(), recipe), make_single_run(subject, exact_stack(), recipe)
    start = run.master_parameters()
    for _ in range(32):
        rank_group.apply_gradients([[full(run, 1.0)]] * 2)
    for rank, state in enumerate(rank_group.states()):
        wide = {n: a for n, a in state.items() if n.startswith("master/") or "moment" in n or "exp_avg" in n}
        formats = {name: value.dtype.name for name, value in wide.items()}
        verdict.equal(formats, dict.fromkeys(wide, "float32"), f"formats of what rank {rank} updates", "narrow")
        ends = ((n, state[f"master/{n}"].astype(np.float64), a.astype(np.float64)) for n, a in start.items())
        still = [n for n, now, then in ends if np.any(np.abs(now - then) < 16 * 2.0**-14)]
        verdict.equal(still, [], f"rank {rank}'s masters that did not move with thirty-two updates", "updates-lost")
