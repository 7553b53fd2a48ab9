"""Dynamic and static loss scaling: changes of the scale."""

import math
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, narrow, need, spike_gradients
from fixtures.arrays import Array
from fixtures.data import exact_batch
from fixtures.model import Batch
from fixtures.models import exact_linear, scalar
from fixtures.recipe import FLOAT16, SGD, DynamicScaling, Recipe, StaticScaling
from frameworks.contract import Capability, Trainer, Update


def drive(trainer: Trainer, schedule: list[float]) -> list[Update]:
    """Make an update for each value of the schedule: 0 for a finite one, inf or NaN for one to be skipped."""
    calm = full(trainer, 2.0**-10)
    spoilt = {bad: spike_gradients(trainer, bad, base=2.0**-10) for bad in (math.inf, -math.inf, math.nan)}
    return [trainer.apply_gradients(next((g for b, g in spoilt.items() if b is v or b == v), calm)) for v in schedule]


@clause("scaling.grows-after-interval")
@pytest.mark.parametrize(("interval", "growths"), [(1, 3), (2, 3), (5, 3), (300, 1)])
def test_grows_after_exactly_interval_finite_updates(
    subject: Subject, verdict: Verdict, interval: int, growths: int
) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=4.0, interval=interval)))
    scales = [u.scale_after for u in drive(trainer, [0.0] * (growths * interval))]
    expected = [4.0 * 2.0 ** ((i + 1) // interval) for i in range(growths * interval)]
    verdict.equal(scales, expected, "scale after each update")


@clause("scaling.grows-after-interval")
def test_overflow_resets_growth_counter(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=2.0**10, interval=3)))
    scales = [u.scale_after for u in drive(trainer, [0.0, 0.0, math.inf, 0.0, 0.0, 0.0])]
    verdict.equal(scales, [1024.0, 1024.0, 512.0, 512.0, 512.0, 1024.0], "scale after each update")


@clause("scaling.backs-off-on-overflow")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan], ids=str)
def test_backs_off_on_every_overflow(subject: Subject, verdict: Verdict, bad: float) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=2.0**10, interval=1000)))
    scales = [u.scale_after for u in drive(trainer, [bad, 0.0, bad, bad, 0.0])]
    verdict.equal(scales, [512.0, 512.0, 256.0, 128.0, 128.0], "scale after each update")


@clause("scaling.backs-off-on-overflow")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan], ids=str)
def test_backs_off_once_where_gradients_are_unscaled_by_hand(subject: Subject, verdict: Verdict, bad: float) -> None:
    need(subject, Capability.EXPLICIT_UNSCALE)
    trainer = subject.trainer(exact_linear(), Recipe(scaling=DynamicScaling(initial=2.0**10, interval=1000)))
    calm, spoilt = full(trainer, 2.0**-10), spike_gradients(trainer, bad, base=2.0**-10)
    updates = [
        trainer.apply_gradients(gradients, unscale_calls=1) for gradients in (spoilt, calm, spoilt, spoilt, calm)
    ]
    verdict.equal([u.scale_after for u in updates], [512.0, 512.0, 256.0, 128.0, 128.0], "scale after each update")


@clause("scaling.defaults-are-declared")
def test_defaults_match_documentation(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling()))
    rule = subject.conventions.scaler
    settings = trainer.scaler_settings()
    declared = {
        "initial": rule.initial,
        "growth": rule.growth,
        "backoff": rule.backoff,
        "interval": float(rule.interval),
    }
    verdict.equal({k: float(v) for k, v in settings.items()}, declared, "scaler settings before the first update")
    verdict.equal(drive(trainer, [0.0])[0].scale_before, rule.initial, "scale of the first update")


@clause("scaling.paper-defaults")
def test_observe_defaults(subject: Subject, verdict: Verdict) -> None:
    settings = subject.trainer(scalar(), Recipe(scaling=DynamicScaling())).scaler_settings()
    verdict.observe("settings", {name: float(value) for name, value in sorted(settings.items())})
    verdict.holds(settings["growth"] > 1 > settings["backoff"] > 0, "growth above 1, backoff between 0 and 1", settings)


@clause("scaling.static-is-constant")
def test_static_scale_is_constant(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=StaticScaling(128.0)))
    updates = drive(trainer, [0.0, 0.0, 0.0])
    verdict.equal([u.scale_after for u in updates], [128.0] * 3, "scale after each finite update")
    scales = [
        u.scale_after for u in drive(subject.trainer(scalar(), Recipe(scaling=StaticScaling(128.0))), [0.0, math.inf])
    ]
    verdict.equal(scales, [128.0, 128.0], "scale around an overflow")


@clause("scaling.static-is-constant")
def test_static_scale_is_transparent(subject: Subject, verdict: Verdict) -> None:
    batch = exact_batch()
    plain = subject.oracle(exact_linear())
    scaled = subject.trainer(exact_linear(), Recipe(scaling=StaticScaling(128.0)))
    losses = [trainer.update((batch,)).loss for trainer in (plain, scaled)]
    verdict.equal(losses[1], losses[0], "reported loss")
    verdict.same_state(scaled.parameters(), narrow(plain.parameters()), "parameters after one update")


@clause("scaling.stays-finite")
def test_scale_stays_finite_after_many_growths(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**16, interval=1)))
    quiet = full(trainer, 0.0)
    scale = [trainer.apply_gradients(quiet).scale_after for _ in range(300)][-1]
    verdict.holds(math.isfinite(scale), "scale after 300 growths is finite", scale, "finite", "scale-infinite")
    verdict.holds(np.isfinite(np.float32(1.0) / np.float32(scale)), "1/scale is finite", 1.0 / scale, "finite")
    for gradient in (2.0**-3, 2.0**3):
        before = trainer.parameters()
        attempts = [trainer.apply_gradients(full(trainer, gradient)) for _ in range(75)]
        after = trainer.parameters()
        verdict.differs(before, after, f"a gradient of {gradient} trains again within 75 updates", "frozen")
        verdict.finite(after, "parameters after training again")
        skips = [update.skipped for update in attempts[-2:]]
        verdict.holds(not all(skips), "of the last two updates at least one is applied", skips, "one False", "frozen")


@clause("scaling.stays-positive")
def test_scale_stays_positive_after_many_backoffs(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(initial=2.0**16)))
    spoilt = spike_gradients(trainer, math.inf)
    scale = [trainer.apply_gradients(spoilt).scale_after for _ in range(400)][-1]
    before = trainer.parameters()
    applied = finite_step(trainer)
    after = trainer.parameters()
    verdict.finite(after, "parameters after 400 overflows and one finite update", "parameters-destroyed")
    verdict.holds(scale > 0, "scale after 400 overflows is positive", scale, "> 0", "scale-zero")
    verdict.holds(
        np.isfinite(np.float32(1.0) / np.float32(scale)), "1/scale is finite", scale, "1/scale finite", "scale-tiny"
    )
    step = np.float32(2.0**-4 if applied else 0.0)
    expected = {name: (value - step).astype(value.dtype) for name, value in before.items()}
    verdict.equal(after, expected, "parameters after the finite update, or its refusal")


@clause("scaling.stays-positive")
def test_float16_trains_again_after_many_overflows(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(SGD(2.0**-4), FLOAT16, DynamicScaling(initial=2.0**16)))
    spoilt = spike_gradients(trainer, math.inf)
    for _ in range(400):
        trainer.apply_gradients(spoilt)
    before = trainer.parameters()
    update = trainer.update((exact_batch(),))
    after = trainer.parameters()
    verdict.finite(after, "parameters after 400 overflows and one good batch", "parameters-destroyed")
    if not update.skipped:
        verdict.differs(before, after, "the good batch is learnt from", "gradients-underflowed")


def finite_step(trainer: Trainer) -> bool:
    """Make a finite update of 2^-3; return False if the framework refused it with an error of its own."""
    try:
        trainer.apply_gradients(full(trainer, 2.0**-3))
    except (ArithmeticError, RuntimeError):
        return False
    return True


@clause("scaling.stuck-is-visible")
def test_endless_skipping_is_visible(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=8.0)))
    updates = drive(trainer, [math.inf] * 20)
    verdict.equal([u.skipped for u in updates], [True] * 20, "updates that are reported as skipped")


@clause("scaling.stuck-is-visible")
def test_loss_overflowing_at_any_scale_trains_or_is_reported(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(0.0), Recipe(SGD(2.0**-30), FLOAT16, DynamicScaling(initial=8.0)))
    batch = Batch(np.full((1, 1), 2.0**12, np.float32), {"output": np.full((1, 1), 2.0**5, np.float32)})
    before, updates = trainer.parameters(), []
    for _ in range(20):
        updates.append(trainer.update((batch,)))
        if not updates[-1].skipped:
            break
    verdict.observe("skipped", sum(update.skipped for update in updates))
    if not updates[-1].skipped:
        verdict.differs(before, trainer.parameters(), "an update that is not reported as skipped", "skipped-in-silence")


@clause("scaling.floor-and-cap")
def test_observe_floor_and_cap(subject: Subject, verdict: Verdict) -> None:
    reached: dict[str, float] = {}
    for name, value in (("largest", 0.0), ("smallest", math.inf)):
        trainer = subject.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=2.0**16, interval=1)))
        gradient = full(trainer, value)
        scales = [trainer.apply_gradients(gradient).scale_after for _ in range(300)]
        reached[name] = scales[-1]
    verdict.observe("reached", reached)
    verdict.holds(reached["largest"] > reached["smallest"], "the scale moves both ways", reached)


@clause("scaling.overflow-path-does-not-raise")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_overflow_in_first_update(subject: Subject, verdict: Verdict, bad: float) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(initial=2.0**10)))
    before = trainer.parameters()
    first = trainer.apply_gradients(spike_gradients(trainer, bad))
    verdict.holds(first.skipped, "the first update is skipped", first.skipped, True)
    verdict.equal(trainer.parameters(), before, "parameters after the overflow")
    trainer.apply_gradients(full(trainer, 1.0))
    expected = {name: (v - np.float32(0.5)).astype(v.dtype) for name, v in before.items()}
    verdict.equal(trainer.parameters(), expected, "parameters after the next finite update")


@clause("scaling.overflow-path-does-not-raise")
def test_overflow_after_restore(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    need(subject, Capability.CHECKPOINT)
    saved, restored = (
        subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(2.0**10, interval=3))) for _ in range(2)
    )
    saved.apply_gradients(full(saved, 2.0**-3))
    saved.save(tmp_path)
    restored.restore(tmp_path)
    before = restored.parameters()
    first = restored.apply_gradients(spike_gradients(restored, math.inf))
    verdict.holds(first.skipped, "the first update after a restore is skipped", first.skipped, True)
    verdict.equal(restored.parameters(), before, "parameters after the overflow")
    verdict.equal(first.scale_after, 512.0, "the scale after the overflow")


@clause("scaling.skip-leaves-no-residue")
def test_overflow_does_not_affect_next_batch(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**8))
    spoilt = exact_batch()
    inputs: Array = spoilt.inputs.copy()
    inputs[0, 0] = np.inf
    trainer, fresh = subject.trainer(exact_linear(), recipe), subject.trainer(exact_linear(), recipe)
    skipped = trainer.update((type(spoilt)(inputs, spoilt.targets),)).skipped
    verdict.holds(skipped, "a batch with an infinite input is skipped", skipped, True)
    trainer.update((spoilt,))
    fresh.update((spoilt,))
    states = subject.state(trainer), subject.state(fresh)
    verdict.same_state(*states, "training state after the good batch that follows", ignoring=("scaler/", "random/"))
