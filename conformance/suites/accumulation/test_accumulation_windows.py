"""Accumulation windows: where they end, and updates made in parts."""

import contextlib
import math
from collections.abc import Mapping

import numpy as np
import pytest

from conformance.checks.api import Bound, Subject, Verdict, clause, full, narrow, need, spike_gradients
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Window
from fixtures.models import exact_linear, exact_stack
from fixtures.recipe import SGD, Adam, AdamW, Optimizer, Recipe
from frameworks.contract import Capability, Trainer, Unsupported

RECIPE = Recipe(SGD(2.0**-4))
UNIT = 2.0**-24
"""Unit roundoff of float32."""
OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": SGD(2.0**-4, momentum=0.9),
    "adam": Adam(1e-2),
    "adamw": AdamW(1e-2, weight_decay=0.1),
}


@clause("accumulation.remainder")
def test_incomplete_window_follows_declared_rule(subject: Subject, verdict: Verdict) -> None:
    recipe = RECIPE.replace(accumulation=2)
    trainer, expected = subject.trainer(exact_linear(), recipe), subject.trainer(exact_linear(), recipe)
    first, second = exact_batch(4), exact_batch(4, seed=1)
    for _epoch in range(2):
        trainer.update(first.into(2))
        expected.update(first.into(2))
        end_of_epoch(subject, verdict, trainer, expected, (second, first))


def end_of_epoch(subject: Subject, verdict: Verdict, trainer: Trainer, expected: Trainer, rest: Window) -> None:
    """End an epoch in a window of two after `rest[0]`; `rest[1]` is the next epoch's first micro-batch."""
    rule = subject.conventions.remainder
    trainer.accumulate(rest[0], rest[0].items if rule == "flush" else 2 * rest[0].items)
    if rule == "flush":
        trainer.apply()
        single = subject.trainer(exact_linear(), RECIPE, expected.parameters())
        single.update((rest[0],))
        verdict.same_state(trainer.parameters(), single.parameters(), "a flush is normalised by its own items")
        expected.accumulate(rest[0], rest[0].items)
        expected.apply()
        return
    before = expected.parameters()
    try:
        trainer.apply()
    except Unsupported:
        verdict.observe("flush", "refused")
    verdict.same_state(trainer.parameters(), before, "parameters while the window is incomplete")
    if rule == "carry":
        trainer.accumulate(rest[1], 2 * rest[0].items)
        trainer.apply()
        expected.update(rest)
    verdict.same_state(trainer.parameters(), expected.parameters(), f"parameters by the rule {rule!r}")


@clause("accumulation.remainder-rule")
def test_observe_remainder_rule(subject: Subject, verdict: Verdict) -> None:
    verdict.observe("rule", subject.conventions.remainder)
    trainer = subject.trainer(exact_linear(), RECIPE.replace(accumulation=2))
    before = trainer.parameters()
    trainer.accumulate(exact_batch(4), 4)
    try:
        trainer.apply()
        applied = not all(np.array_equal(before[n], v) for n, v in trainer.parameters().items())
    except Unsupported:
        applied = False
    verdict.equal(
        applied, subject.conventions.remainder == "flush", "a lone micro-batch is applied at the end of an epoch"
    )


@clause("accumulation.remainder")
@pytest.mark.parametrize("k", [2, 3])
def test_epoch_of_any_length_makes_declared_number_of_updates(subject: Subject, verdict: Verdict, k: int) -> None:
    rule = subject.conventions.remainder
    trainer = subject.trainer(exact_linear(), RECIPE.replace(accumulation=k))
    measured: dict[int, int] = {}
    expected: dict[int, int] = {}
    waiting = 0
    for length in range(1, 2 * k + 2):
        measured[length] = epoch(trainer, length, k, waiting, rule)
        total = waiting + length
        expected[length] = -(-total // k) if rule == "flush" else total // k
        waiting = total % k if rule == "carry" else 0
    verdict.equal(measured, expected, f"updates by length of the epoch, by the rule {rule!r}", "number-of-updates")


def epoch(trainer: Trainer, length: int, k: int, waiting: int, rule: str) -> int:
    """Train an epoch; return how many micro-batches changed parameters. `waiting` are from the previous epoch."""
    updates = 0
    for index in range(length):
        before = trainer.parameters()
        full_window = (waiting + index + 1) % k == 0
        ends_epoch = index + 1 == length
        tail = length % k if rule == "flush" and index >= length - length % k else k
        trainer.accumulate(exact_batch(4, seed=index), 4 * tail)
        if full_window or (ends_epoch and rule == "flush"):
            trainer.apply()
        elif ends_epoch and rule == "drop":
            with contextlib.suppress(Unsupported):
                trainer.apply()
        updates += any(not np.array_equal(before[n], v) for n, v in trainer.parameters().items())
    return updates


@clause("accumulation.remainder")
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_flush_equals_full_batch_of_partial_window(subject: Subject, verdict: Verdict, micro_batches: int) -> None:
    need(subject, Capability.PARTIAL_WINDOW)
    whole, cut = subject.oracle(exact_linear(), RECIPE), subject.trainer(exact_linear(), RECIPE.replace(accumulation=4))
    batch = exact_batch(4 * micro_batches)
    whole.update((batch,))
    cut.update(batch.into(micro_batches))
    expected = narrow(whole.parameters())
    verdict.same_state(
        cut.parameters(), expected, f"parameters after a flush of {micro_batches} of 4", "not-full-batch"
    )


@clause("accumulation.missing-gradients-count")
@pytest.mark.parametrize("absent", [(0,), (3,), (0, 1, 3)], ids=lambda a: "-".join(map(str, a)))
def test_gradient_of_one_micro_batch_is_kept_when_others_have_none(
    subject: Subject, verdict: Verdict, absent: tuple[int, ...]
) -> None:
    need(subject, Capability.MISSING_GRADIENTS)
    trainer = subject.trainer(exact_linear(), RECIPE.replace(accumulation=4))
    before, name = trainer.parameters(), "0.output.weight"
    feeds = [full(trainer, 1.0) for _ in range(4)]
    trainer.apply_gradients(
        *({n: None if i in absent and n == name else g for n, g in f.items()} for i, f in enumerate(feeds))
    )
    shares = {n: (4 - len(absent)) / 4 if n == name else 1.0 for n in before}
    expected = {n: (value - np.float32(2.0**-4 * shares[n])).astype(value.dtype) for n, value in before.items()}
    verdict.same_state(trainer.parameters(), expected, "parameters after the window", "contribution-lost")


@clause("accumulation.clip-off-is-off")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
@pytest.mark.parametrize("k", [1, 2])
def test_finite_gradients_are_applied_unclipped_beside_nonfinite(
    subject: Subject, verdict: Verdict, k: int, bad: float
) -> None:
    trainer = subject.trainer(exact_linear(), RECIPE.replace(accumulation=k))
    before, spike = trainer.parameters(), spike_gradients(trainer, bad, base=1.0)
    trainer.apply_gradients(*[spike] * k)
    expected = {name: (value - np.float32(2.0**-4) * spike[name]).astype(value.dtype) for name, value in before.items()}
    after, finite = trainer.parameters(), {name: np.isfinite(value) for name, value in expected.items()}
    measured, wanted = ({name: state[name][own] for name, own in finite.items()} for state in (after, expected))
    verdict.same_state(measured, wanted, "parameters next to the non-finite one, without clipping", "clipped")
    spoilt = sum(int((~np.isfinite(after[name][~own])).sum()) for name, own in finite.items())
    verdict.holds(spoilt == 1, "non-finite elements where the gradient is not finite", spoilt, 1, "clipped")


@clause("accumulation.groups-change-nothing")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.25], ids=["unclipped", "clipped"])
def test_two_parameter_groups_equal_one(subject: Subject, verdict: Verdict, optimizer: str, clip: float | None) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], accumulation=2, clip=clip)
    one, two = (subject.trainer(exact_stack(), recipe.replace(groups=groups)) for groups in (1, 2))
    for seed in range(3):
        before = one.state()
        parts = exact_batch(8, seed=seed).into(2)
        one.update(parts)
        two.update(parts)
        if clip is None:
            verdict.same_state(two.state(), one.state(), f"training state after update {seed + 1}", "groups-differ")
        else:
            _same_movement(verdict, before, one.state(), two.state(), f"update {seed + 1}")
            one, two = (subject.trainer(exact_stack(), recipe.replace(groups=groups)) for groups in (1, 2))


def _same_movement(
    verdict: Verdict, before: Mapping[str, Array], one: Mapping[str, Array], two: Mapping[str, Array], what: str
) -> None:
    """Check that two states moved by the same amounts, except for the rounding of the norm's sum of squares."""
    count = sum(array.size for name, array in before.items() if name.startswith("parameter/"))
    for name, old in before.items():
        start, alone, grouped = (np.asarray(array, np.float64) for array in (old, one[name], two[name]))
        method = "2 unit roundoffs of float32 for each square in the norm, of the movement; 2 of the value"
        moved, largest = (np.abs(array).max(initial=0.0) for array in (alone - start, alone))
        bound = Bound(float(2 * UNIT * (count * moved + largest)), {"method": method, "squares": count})
        verdict.within(float(np.abs(grouped - alone).max(initial=0.0)), bound, f"{what}: {name}", "groups-differ")
