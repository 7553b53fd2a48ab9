"""Gradient accumulation under a loss scaler: one scale in a window, and micro-batches with non-finite gradients."""

import math

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, narrow, spike_gradients
from fixtures.data import exact_batch
from fixtures.models import exact_linear, scalar
from fixtures.recipe import PURE_LOW, SGD, DynamicScaling, Precision, Recipe

RECIPE = Recipe(SGD(2.0**-4))


@clause("accumulation.keeps-precision")
@pytest.mark.parametrize("precision", PURE_LOW, ids=lambda p: p.format)
def test_accumulator_receives_unscaled_gradients(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    recipe = Recipe(SGD(1.0), precision, DynamicScaling(initial=2.0**10), accumulation=2)
    trainer = subject.trainer(scalar(0.0), recipe)
    trainer.apply_gradients(full(trainer, 0.5), full(trainer, 0.25))
    expected = {name: np.full_like(value, -0.375) for name, value in trainer.parameters().items()}
    verdict.same_state(trainer.parameters(), expected, "parameters after the mean of two scaled gradients")


@clause("accumulation.scale-is-constant-in-window")
def test_scale_is_constant_within_window(subject: Subject, verdict: Verdict) -> None:
    recipe = RECIPE.replace(accumulation=4, scaling=DynamicScaling(initial=2.0**10, interval=1))
    trainer, plain = subject.trainer(exact_linear(), recipe), subject.oracle(exact_linear(), RECIPE)
    batch, scales = exact_batch(8), []
    for part in batch.into(4)[:3]:
        trainer.accumulate(part, 8)
        scales.append(float(trainer.scaler_state()["scale"]))
    trainer.accumulate(batch.into(4)[3], 8)
    update = trainer.apply()
    plain.update((batch,))
    expected = narrow(plain.parameters())
    verdict.same_state(trainer.parameters(), expected, "parameters after a window in which growth was due")
    if subject.conventions.accumulates == "scaled":
        verdict.equal(scales, [2.0**10] * 3, "scale after each micro-batch but the last", "scale-moved-in-window")
        verdict.equal(update.scale_after, 2.0**11, "scale after the window", "scale-moved-in-window")
    else:
        verdict.observe("scale after each micro-batch", [*scales, update.scale_after])


@clause("accumulation.nonfinite-micro-batch")
def test_nonfinite_micro_batch_is_never_applied(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(SGD(0.5), accumulation=4, scaling=DynamicScaling(initial=2.0**10))
    trainer = subject.trainer(scalar(), recipe)
    before, state = trainer.parameters(), subject.state(trainer)
    calm, spoilt = full(trainer, 2.0**-3), spike_gradients(trainer, math.inf, base=2.0**-3)
    update = trainer.apply_gradients(calm, spoilt, calm, calm)
    verdict.finite(trainer.parameters(), "parameters after inf in the second of four", "applied-non-finite")
    ignored = ("scaler/", "accumulator/")
    verdict.same_state(
        subject.state(trainer), state, "training state while the window cannot be applied", ignoring=ignored
    )
    verdict.holds(update.skipped, "the window is reported as not applied", update.skipped, True)
    rule = subject.conventions.nonfinite_micro_batch
    following = [full(trainer, 2.0**-3)] * (4 if rule == "drop-window" else 1)
    step = np.float32(0.5 * 2.0**-3)
    expected = {name: (value - step).astype(value.dtype) for name, value in before.items()}
    trainer.apply_gradients(*following)
    verdict.equal(trainer.parameters(), expected, f"parameters after the other micro-batches, by the rule {rule!r}")


@clause("accumulation.bad-window-is-forgotten")
@pytest.mark.parametrize(
    ("bad", "scaling"),
    [(math.inf, None), (math.inf, DynamicScaling(initial=2.0**10)), (math.nan, DynamicScaling(initial=2.0**10))],
    ids=["inf-unscaled", "inf-scaled", "nan-scaled"],
)
def test_overflow_window_does_not_affect_later_windows(
    subject: Subject, verdict: Verdict, bad: float, scaling: DynamicScaling | None
) -> None:
    recipe = RECIPE.replace(accumulation=2, scaling=scaling)
    trainer = subject.trainer(exact_linear(), recipe)
    calm = full(trainer, 2.0**-3)
    trainer.apply_gradients(spike_gradients(trainer, bad, base=2.0**-3), calm)
    if scaling is not None and subject.conventions.nonfinite_micro_batch == "drop-micro-batch":
        trainer.apply_gradients(calm)  # the second of the window
    new = subject.trainer(exact_linear(), recipe, trainer.parameters())
    for number in (1, 2):
        for run in (trainer, new):
            run.apply_gradients(calm, full(run, 2.0**-4))
        what = f"parameters after {number} of two windows behind the bad one"
        verdict.same_state(trainer.parameters(), new.parameters(), what, "bad-window-stays")


@clause("accumulation.bad-window-is-forgotten")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_overflow_in_incomplete_window_does_not_affect_later_windows(
    subject: Subject, verdict: Verdict, bad: float
) -> None:
    conventions = subject.conventions
    if conventions.remainder != "flush" or conventions.nonfinite_micro_batch != "drop-window":
        verdict.abstain("an incomplete window, or what is finite in it, is not applied on its own")
        return
    recipe = RECIPE.replace(accumulation=4, scaling=DynamicScaling(initial=2.0**10))
    trainer = subject.trainer(exact_linear(), recipe)
    calm = full(trainer, 2.0**-3)
    trainer.apply_gradients(spike_gradients(trainer, bad, base=2.0**-3), calm)
    new = subject.trainer(exact_linear(), recipe, trainer.parameters())
    for number in (1, 2):
        for run in (trainer, new):
            run.apply_gradients(calm, full(run, 2.0**-4), calm, calm)
        what = f"parameters after {number} of two windows behind the bad one"
        verdict.same_state(trainer.parameters(), new.parameters(), what, "bad-window-stays")


@clause("accumulation.nonfinite-micro-batch-rule")
def test_observe_nonfinite_micro_batch_rule(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(SGD(1.0), accumulation=2, scaling=DynamicScaling(initial=2.0**10))
    trainer = subject.trainer(scalar(), recipe)
    before = trainer.parameters()["0.output.bias"].item()
    trainer.apply_gradients(spike_gradients(trainer, math.inf), full(trainer, 2.0**-3))
    trainer.apply_gradients(full(trainer, 2.0**-5), full(trainer, 2.0**-5))
    moved = before - trainer.parameters()["0.output.bias"].item()
    rules = {2.0**-5: "drop-window", (2.0**-3 + 2.0**-5) / 2: "drop-micro-batch"}
    verdict.holds(moved in rules, "distance moved by the next window", moved, list(rules), "neither-rule")
    verdict.observe("rule", rules[moved])
    verdict.equal(rules[moved], subject.conventions.nonfinite_micro_batch, "rule, compared with the declared one")
