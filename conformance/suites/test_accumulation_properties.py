"""Laws of gradient accumulation: whatever a window is cut into, in whatever order, it makes one update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from conformance.judging.kit import Scale, Subject, Verdict, clause, full, need, spiked
from conformance.judging.laws import explore
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.models import exact_linear, scalar
from fixtures.recipe import SGD, DynamicScaling, Recipe
from frameworks.contract import Capability

RATE = 2.0**-4


@dataclass(frozen=True)
class Partition:
    """A batch of 8 samples in micro-batches of these sizes, which come in this order."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    seed: int = 0


@st.composite
def partitions(draw: st.DrawFn, equal: bool) -> Partition:
    """Partitions of 8 samples: into 2 to 8 micro-batches, all of one size or of any."""
    if equal:
        k = draw(st.sampled_from([2, 8]))
        sizes = (8 // k,) * k
    else:
        cuts = sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=4)))
        sizes = tuple(b - a for a, b in zip([0, *cuts], [*cuts, 8], strict=True))
    order = draw(st.permutations(range(len(sizes))))
    return Partition(sizes, tuple(order), draw(st.integers(0, 99)))


def compare(subject: Subject, verdict: Verdict, case: Partition, signature: str) -> None:
    """The update of the cut batch against that of the whole one."""
    recipe = Recipe(SGD(RATE))
    batch = exact_batch(8, seed=case.seed)
    parts = batch.split(*case.sizes)
    whole, cut = (subject.trainer(exact_linear(), recipe.but(accumulation=k)) for k in (1, len(parts)))
    losses = [whole.update((batch,)).loss, cut.update(tuple(parts[i] for i in case.order)).loss]
    verdict.same_state(cut.parameters(), whole.parameters(), "parameters after the cut batch", signature)
    verdict.equal(losses[1], losses[0], "loss of the window", signature)


@clause("accumulation.equals-full-batch")
@explore(partitions(equal=True), examples=5)
def test_equal_micro_batches_in_any_order_are_the_full_batch(
    subject: Subject, verdict: Verdict, case: Partition
) -> None:
    compare(subject, verdict, case, "not-full-batch")


@clause("accumulation.weighs-items")
@explore(partitions(equal=False), examples=10)
def test_micro_batches_of_any_sizes_in_any_order_are_the_full_batch(
    subject: Subject, verdict: Verdict, case: Partition
) -> None:
    compare(subject, verdict, case, "mean-of-means")


@dataclass(frozen=True)
class Window:
    """Gradients of a window in 1/64: for each micro-batch, those of weight and bias, None where there is none."""

    gradients: tuple[tuple[int | None, int | None], ...]


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Windows of 2 or 4 micro-batches, each of which uses at least one of two parameters."""
    value = st.sampled_from([1, 2, 4, 8, 16, -1, -32])
    pair = st.one_of(st.tuples(value, st.none()), st.tuples(st.none(), value), st.tuples(value, value))
    k = draw(st.sampled_from([2, 4]))
    return Window(tuple(draw(st.lists(pair, min_size=k, max_size=k))))


@clause("accumulation.missing-gradients-count")
@explore(windows(), examples=8)
def test_the_update_is_the_mean_of_the_gradients_that_came(subject: Subject, verdict: Verdict, case: Window) -> None:
    need(subject, Capability.MISSING_GRADIENTS)
    k = len(case.gradients)
    trainer = subject.trainer(scalar(), Recipe(SGD(1.0), accumulation=k))
    before = trainer.parameters()
    feeds: list[dict[str, Array | None]] = [
        {
            name: None if value is None else np.full_like(before[name], value / 64)
            for name, value in zip(before, pair, strict=True)
        }
        for pair in case.gradients
    ]
    trainer.feed(*feeds)
    sums = [sum(pair[place] or 0 for pair in case.gradients) for place in range(2)]
    expected = {
        name: (value - np.float32(total / 64 / k)).astype(value.dtype)
        for (name, value), total in zip(before.items(), sums, strict=True)
    }
    verdict.same_state(trainer.parameters(), expected, "parameters after the window", "contribution-lost")


@dataclass(frozen=True)
class Overflows:
    """For each window of 4 micro-batches, what is in the last element of each one's gradient."""

    windows: tuple[tuple[float, ...], ...]


def overflows() -> st.SearchStrategy[Overflows]:
    """One to four windows of 4 micro-batches, some of them not finite."""
    value = st.sampled_from([1.0, 1.0, 1.0, math.inf, -math.inf, math.nan])
    return st.lists(st.tuples(value, value, value, value), min_size=1, max_size=4).map(lambda w: Overflows(tuple(w)))


@clause("accumulation.scale-is-constant-in-window")
@explore(overflows(), examples=6)
def test_the_scale_moves_once_a_window(subject: Subject, verdict: Verdict, case: Overflows) -> None:
    scaling = DynamicScaling(initial=2.0**10, interval=2)
    trainer = subject.trainer(scalar(), Recipe(SGD(RATE), accumulation=4, scaling=scaling))
    conventions, expected = subject.conventions, Scale(2.0**10, interval=2)
    moving = conventions.accumulates == "unscaled" and conventions.scaler.counts == "micro-batches"
    for place, window in enumerate(case.windows):
        update = trainer.feed(*(spiked(trainer, value, base=0.5) for value in window))
        counted = window if moving else [value for value in window if not math.isfinite(value)][:1] or window[:1]
        for value in counted:
            expected = expected.after(math.isfinite(value))
        verdict.equal(update.scale_after, expected.scale, f"scale after window {place}", "scale-moved-in-window")


@clause("accumulation.nonfinite-micro-batch")
@explore(overflows(), examples=6)
def test_no_window_applies_what_is_not_finite(subject: Subject, verdict: Verdict, case: Overflows) -> None:
    scaling = DynamicScaling(initial=2.0**10)
    trainer = subject.trainer(scalar(), Recipe(SGD(RATE), accumulation=4, scaling=scaling))
    whole = subject.conventions.nonfinite_micro_batch == "drop-window"
    waiting, applied, before = 0, 0, trainer.parameters()
    for place, window in enumerate(case.windows):
        trainer.feed(*(full(trainer, 0.5) if value == 1.0 else spiked(trainer, value, base=0.5) for value in window))
        finite = sum(value == 1.0 for value in window)
        waiting = (4 if finite == 4 else 0) if whole else waiting + finite
        applied, waiting = applied + waiting // 4, waiting % 4
        expected = {n: (v - np.float32(RATE * 0.5 * applied)).astype(v.dtype) for n, v in before.items()}
        verdict.same_state(trainer.parameters(), expected, f"parameters after window {place}", "applied-non-finite")
