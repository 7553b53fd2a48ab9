"""Loss scaling: the state that a skipped update must not change, and the gradients that decide about a skip."""

import math

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, run_two_updates, spike_gradients
from fixtures.models import exact_linear, two_heads
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Optimizer, Recipe, StaticScaling
from frameworks.contract import Capability

SCALING = DynamicScaling(initial=2.0**10)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(2.0**-4),
    "momentum": SGD(2.0**-4, momentum=0.5),
    "adam": Adam(2.0**-6),
    "adamw": AdamW(2.0**-6, weight_decay=2.0**-3),
}
MOVES = ("scaler/", "random/")
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)
each_spoiler = pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan], ids=str)


@clause("scaling.skip-is-atomic")
@each_optimizer
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_skipped_update_is_atomic(subject: Subject, verdict: Verdict, optimizer: str, bad: float) -> None:
    trainer = run_two_updates(subject, OPTIMIZERS[optimizer])
    before = subject.state(trainer)
    trainer.apply_gradients(spike_gradients(trainer, bad, base=1.0))
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))


@clause("scaling.skip-is-atomic")
@each_optimizer
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_skip_under_static_scale_is_atomic(subject: Subject, verdict: Verdict, optimizer: str, bad: float) -> None:
    trainer = run_two_updates(subject, OPTIMIZERS[optimizer], scaling=StaticScaling(2.0**10))
    before = subject.state(trainer)
    if not trainer.apply_gradients(spike_gradients(trainer, bad, base=1.0)).skipped:
        verdict.abstain("an overflow skips no update under a static scale")
        return
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))


@clause("scaling.skip-is-atomic")
def test_skipped_update_keeps_average(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.AVERAGE)
    trainer = run_two_updates(subject, OPTIMIZERS["sgd"], average=0.5)
    before = subject.state(trainer)
    trainer.apply_gradients(spike_gradients(trainer, math.inf, base=1.0))
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))


@clause("scaling.skip-is-atomic")
def test_consecutive_skips_are_never_applied(subject: Subject, verdict: Verdict) -> None:
    trainer = run_two_updates(subject, OPTIMIZERS["adam"], scaling=DynamicScaling(initial=2.0**100))
    before, spoilt = subject.state(trainer), spike_gradients(trainer, math.nan, base=1.0)
    for _ in range(100):
        trainer.apply_gradients(spoilt)
    verdict.same_state(subject.state(trainer), before, "training state after 100 skips in a row", ignoring=("scaler/",))


@clause("scaling.skip-is-atomic")
@each_optimizer
def test_skipped_first_update_changes_no_parameter(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(OPTIMIZERS[optimizer], scaling=SCALING))
    untouched = subject.trainer(exact_linear(), Recipe(OPTIMIZERS[optimizer], scaling=SCALING))
    before = trainer.parameters()
    trainer.apply_gradients(spike_gradients(trainer, math.inf))
    verdict.equal(trainer.parameters(), before, "parameters")
    for run in (trainer, untouched):
        run.apply_gradients(full(run, 2.0**-3))
    states = subject.state(trainer), subject.state(untouched)
    verdict.same_state(*states, "state after the next finite update", ignoring=MOVES)


@clause("scaling.skip-is-reported")
@each_optimizer
def test_skip_is_reported_exactly_when_skipped(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    trainer = run_two_updates(subject, OPTIMIZERS[optimizer])
    reported, real = [], []
    for spoilt in (False, True, False, True, True, False):
        before = trainer.parameters()
        update = trainer.apply_gradients(spike_gradients(trainer, math.inf) if spoilt else full(trainer, 2.0**-2))
        reported.append(update.skipped)
        after = trainer.parameters()
        real.append(all(np.array_equal(before[name], after[name]) for name in before))
    verdict.equal(real, [False, True, False, True, True, False], "updates that changed no parameter")
    verdict.equal(reported, real, "updates that are reported as skipped")


@clause("scaling.step-count-follows-updates")
@each_optimizer
def test_run_with_skips_equals_run_without(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    trainer, plain = run_two_updates(subject, OPTIMIZERS[optimizer]), run_two_updates(subject, OPTIMIZERS[optimizer])
    rates = []
    for value in (2.0**-3, math.inf, -(2.0**-4), math.nan, 2.0**-2):
        gradient = full(trainer, value)
        update = trainer.apply_gradients(gradient)
        if math.isfinite(value):
            rates.append((update.learning_rate, plain.apply_gradients(gradient).learning_rate))
    states = subject.state(trainer), subject.state(plain)
    verdict.same_state(*states, "state after three applied updates", ignoring=MOVES)
    counters = {name: int(value) for name, value in trainer.optimizer_state().items() if name in ("steps", "schedule")}
    verdict.equal(
        counters, dict.fromkeys(counters, 5), "counters after two applied updates and three more", "miscounted"
    )
    verdict.equal([a for a, _ in rates], [b for _, b in rates], "learning rate of each applied update")
    base = OPTIMIZERS[optimizer].learning_rate
    expected = [float(np.float32(base * f)) for f in (0.5, 0.25, 0.25)]
    verdict.equal(
        [float(np.float32(a)) for a, _ in rates], expected, "rates, compared with the schedule of applied updates"
    )


def spoil_everywhere(subject: Subject, verdict: Verdict, recipe: Recipe, bad: float) -> None:
    """Check that the update is skipped if any one parameter's gradient has one bad element."""
    trainer = subject.trainer(two_heads(), recipe)
    for name in trainer.parameters():
        before = trainer.parameters()
        update = trainer.apply_gradients(spike_gradients(trainer, bad, name, base=2.0**-3))
        verdict.equal(trainer.parameters(), before, f"parameters after {bad} in {name}", "applied-non-finite")
        verdict.holds(update.skipped, f"{bad} in {name} is reported as a skip", update.skipped, True)


@clause("scaling.detects-inf")
@pytest.mark.parametrize("bad", [math.inf, -math.inf], ids=str)
def test_single_infinite_element_skips(subject: Subject, verdict: Verdict, bad: float) -> None:
    spoil_everywhere(subject, verdict, Recipe(SGD(0.5), scaling=SCALING), bad)


@clause("scaling.detects-nan")
def test_single_nan_element_skips(subject: Subject, verdict: Verdict) -> None:
    spoil_everywhere(subject, verdict, Recipe(SGD(0.5), scaling=SCALING), math.nan)


@clause("scaling.detects-every-group")
@each_spoiler
def test_every_parameter_group_is_checked(subject: Subject, verdict: Verdict, bad: float) -> None:
    spoil_everywhere(subject, verdict, Recipe(SGD(0.5), scaling=SCALING, groups=2), bad)


@clause("scaling.tolerates-missing-gradients")
def test_parameter_without_gradient_is_ignored(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(two_heads(), Recipe(SGD(0.5), scaling=SCALING))
    names = list(trainer.parameters())
    for missing in (names[:2], names[2:4], names[-1:]):
        before = trainer.parameters()
        grads = {name: value for name, value in full(trainer, 2.0**-3).items() if name not in missing}
        update = trainer.apply_gradients(grads)
        after = trainer.parameters()
        verdict.holds(not update.skipped, f"an update without {missing} is applied", update.skipped, False)
        verdict.equal({n: after[n] for n in missing}, {n: before[n] for n in missing}, "parameters without a gradient")
        moved = {n: (before[n] - np.float32(2.0**-4)).astype(before[n].dtype) for n in grads}
        verdict.equal({n: after[n] for n in grads}, moved, "parameters with a gradient")
        spoilt = {**grads, next(iter(grads)): spike_gradients(trainer, math.inf, next(iter(grads)))[next(iter(grads))]}
        trainer.apply_gradients(spoilt)
        verdict.equal(trainer.parameters(), after, f"parameters after inf without {missing}", "applied-non-finite")


@clause("scaling.tolerates-missing-gradients")
def test_parameter_without_gradient_keeps_its_moments(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.MISSING_GRADIENTS)
    trainer = subject.trainer(two_heads(), Recipe(Adam(2.0**-4), scaling=SCALING))
    trainer.apply_gradients(full(trainer, 1.0))
    before = {**trainer.master_parameters(), **trainer.optimizer_state()}
    absent = next(iter(trainer.parameters()))
    trainer.apply_gradients({name: value for name, value in full(trainer, 1.0).items() if name != absent})
    after = {**trainer.master_parameters(), **trainer.optimizer_state()}
    own = [key for key in before if key == absent or key.endswith(f"/{absent}")]
    verdict.equal(
        {key: after[key] for key in own}, {key: before[key] for key in own}, f"{absent} and its moments", "moved-anyway"
    )
    others = [key for key in trainer.parameters() if key != absent]
    verdict.differs({k: before[k] for k in others}, {k: after[k] for k in others}, "the other parameters")


@clause("scaling.detects-every-group")
def test_gradient_order_does_not_matter(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(two_heads(), Recipe(SGD(0.5), scaling=SCALING))
    before = trainer.parameters()
    spoilt = spike_gradients(trainer, math.nan, next(iter(before)), base=1.0)
    trainer.apply_gradients(dict(reversed(spoilt.items())))
    verdict.equal(trainer.parameters(), before, "parameters after NaN in reversed order", "applied-non-finite")


@clause("scaling.tolerates-missing-gradients")
def test_update_without_gradients_is_ignored(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.MISSING_GRADIENTS)
    trainer = run_two_updates(subject, OPTIMIZERS["adam"], schedule=None)
    before = subject.state(trainer)
    update = trainer.apply_gradients({})
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))
    verdict.equal(update.scale_after, update.scale_before, "the scale, for nothing has overflowed")
    verdict.observe("good-steps", update.good_steps)


@clause("scaling.detects-what-is-applied")
@each_spoiler
def test_nonfinite_gradient_after_unscaling_is_not_applied(subject: Subject, verdict: Verdict, bad: float) -> None:
    trainer = subject.trainer(exact_linear(), Recipe(SGD(0.5), scaling=SCALING))
    before = trainer.parameters()
    trainer.apply_gradients(full(trainer, 2.0**-3), inject=spike_gradients(trainer, bad))
    verdict.finite(
        trainer.parameters(), "parameters after a gradient became infinite after unscaling", "applied-poison"
    )
    verdict.equal(trainer.parameters(), before, "parameters of the skipped update")


@clause("scaling.two-optimizers")
@pytest.mark.parametrize("hit", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_overflow_with_two_optimizers(subject: Subject, verdict: Verdict, hit: tuple[int, ...]) -> None:
    trainer = subject.trainer(two_heads(), Recipe(SGD(0.5), scaling=DynamicScaling(2.0**10, interval=2), optimizers=2))
    names, before = list(trainer.parameters()), trainer.parameters()
    skipped = (0, 1) if subject.conventions.partial_overflow == "skip-all" else hit
    gradients = full(trainer, 1.0)
    for optimizer in hit:
        gradients[names[optimizer]].reshape(-1)[-1] = np.inf
    update = trainer.apply_gradients(gradients)
    after = trainer.parameters()
    for index, name in enumerate(names):
        step = 0.0 if index % 2 in skipped else 0.5
        expected = (before[name] - np.float32(step)).astype(before[name].dtype)
        verdict.equal(after[name], expected, f"{name}, of optimizer {index % 2}")
    verdict.equal(update.scale_after, 512.0, "the shared scale backs off once", "scale-differs")
    scales = [trainer.apply_gradients(full(trainer, 2.0**-3)).scale_after for _ in range(2)]
    verdict.equal(scales, [512.0, 1024.0], "the shared scale moves once an update", "scale-differs")


@clause("scaling.two-optimizers-rule")
def test_observe_skips_with_two_optimizers(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(two_heads(), Recipe(SGD(0.5), scaling=SCALING, optimizers=2))
    before = trainer.parameters()
    trainer.apply_gradients(spike_gradients(trainer, math.inf, list(before)[1], base=1.0))
    after = trainer.parameters()
    moved = any(not np.array_equal(before[name], after[name]) for name in list(before)[::2])
    rule = "skip-overflowing" if moved else "skip-all"
    verdict.observe("rule", rule)
    verdict.equal(rule, subject.conventions.partial_overflow, "rule, compared with the declared one")


@clause("scaling.abandoned-update-leaves-no-trace")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_finite_update_can_be_discarded(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    need(subject, Capability.EXPLICIT_UNSCALE)
    trainer, fresh = run_two_updates(subject, OPTIMIZERS[optimizer]), run_two_updates(subject, OPTIMIZERS[optimizer])
    before = subject.state(trainer)
    trainer.apply_gradients(full(trainer, 1.0), discard=True)
    verdict.same_state(subject.state(trainer), before, "training state (excluding scaler)", ignoring=("scaler/",))
    for run in (trainer, fresh):
        run.apply_gradients(full(run, 2.0**-3))
    states = subject.state(trainer), subject.state(fresh)
    verdict.same_state(*states, "state after the next finite update", ignoring=MOVES)


@clause("scaling.abandoned-update-leaves-no-trace")
@each_spoiler
def test_overflow_can_be_discarded(subject: Subject, verdict: Verdict, bad: float) -> None:
    need(subject, Capability.EXPLICIT_UNSCALE)
    scaling = DynamicScaling(initial=2.0**10, interval=2)
    trainer = subject.trainer(exact_linear(), Recipe(SGD(2.0**-4), scaling=scaling))
    before = trainer.parameters()
    trainer.apply_gradients(full(trainer, 2.0**-3))
    spoilt = trainer.apply_gradients(spike_gradients(trainer, bad), discard=True)
    trainer.apply_gradients(full(trainer, 2.0**-3))
    moved = {name: (value - np.float32(2.0**-6)).astype(value.dtype) for name, value in before.items()}
    verdict.equal(trainer.parameters(), moved, "parameters after two finite updates", "not-ready")
    scales = spoilt.scale_before, spoilt.scale_after
    verdict.holds(scales[1] <= scales[0], "an overflow does not raise the scale", scales, "no growth", "scale-grows")
