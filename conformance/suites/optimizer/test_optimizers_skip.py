"""Loss scaling under each implementation of an optimizer: skips, clipping, and work after an update."""

import math

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, run_two_updates, spike_gradients
from conformance.techniques.optimizers import judge_updates
from fixtures.models import exact_linear, two_heads, vectors
from fixtures.recipe import (
    BFLOAT16,
    FLOAT32,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Implementation,
    Optimizer,
    Precision,
    Recipe,
)
from frameworks.contract import Capability

SCALING = DynamicScaling(initial=2.0**10)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(2.0**-4),
    "momentum": SGD(2.0**-4, momentum=0.5),
    "adam": Adam(2.0**-6, beta1=0.5, beta2=0.75),
    "adamw-amsgrad": AdamW(2.0**-6, beta1=0.5, beta2=0.75, weight_decay=2.0**-3, amsgrad=True),
}
CHOSEN: tuple[Implementation, ...] = ("single", "foreach", "fused", "capturable")
MOVES = ("scaler/", "random/")
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)
each_chosen = pytest.mark.parametrize("implementation", CHOSEN)
each_implementation = pytest.mark.parametrize("implementation", ["default", *CHOSEN])


@clause("scaling.skip-is-atomic")
@each_optimizer
@each_chosen
def test_implementation_skip_is_atomic(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    trainer = run_two_updates(subject, OPTIMIZERS[optimizer], implementation=implementation)
    before = subject.state(trainer)
    for bad in (math.inf, -math.inf, math.nan):
        update = trainer.apply_gradients(spike_gradients(trainer, bad, base=1.0))
        verdict.same_state(subject.state(trainer), before, f"training state after {bad}", ignoring=("scaler/",))
        verdict.holds(update.skipped, f"{bad} is reported as a skip", update.skipped, True, "unreported")


@clause("scaling.skip-is-atomic")
@each_optimizer
@each_chosen
def test_implementation_skips_first_update(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], scaling=SCALING, implementation=implementation)
    trainer, untouched = (subject.trainer(exact_linear(8, 256), recipe) for _ in range(2))
    before = trainer.parameters()
    trainer.apply_gradients(spike_gradients(trainer, math.inf, base=1.0))
    verdict.equal(trainer.parameters(), before, "parameters")
    for _ in range(2):
        for run in (trainer, untouched):
            run.apply_gradients(full(run, 2.0**-3))
    states = subject.state(trainer), subject.state(untouched)
    verdict.same_state(*states, "state after two finite updates", ignoring=MOVES)


@clause("scaling.step-count-follows-updates")
@each_optimizer
@each_chosen
def test_implementation_counts_applied_updates(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    trainer, plain = (run_two_updates(subject, OPTIMIZERS[optimizer], implementation=implementation) for _ in range(2))
    for value in (2.0**-3, math.inf, -(2.0**-4), math.nan, 2.0**-2):
        trainer.apply_gradients(full(trainer, value))
        if math.isfinite(value):
            plain.apply_gradients(full(plain, value))
    states = subject.state(trainer), subject.state(plain)
    verdict.same_state(*states, "state after three applied updates", ignoring=MOVES)
    counters = {name: int(value) for name, value in trainer.optimizer_state().items() if name in ("steps", "schedule")}
    verdict.equal(
        counters, dict.fromkeys(counters, 5), "counters after two applied updates and three more", "miscounted"
    )


@clause("scaling.detects-every-group")
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan], ids=str)
@each_chosen
def test_implementation_checks_every_group(
    subject: Subject, verdict: Verdict, implementation: Implementation, bad: float
) -> None:
    recipe = Recipe(SGD(0.5), scaling=SCALING, groups=2, implementation=implementation)
    trainer = subject.trainer(two_heads(), recipe)
    for name in trainer.parameters():
        before = trainer.parameters()
        update = trainer.apply_gradients(spike_gradients(trainer, bad, name, base=2.0**-3))
        verdict.equal(trainer.parameters(), before, f"parameters after {bad} in {name}", "applied-non-finite")
        verdict.holds(update.skipped, f"{bad} in {name} is reported as a skip", update.skipped, True)


@clause("scaling.unscales-before-clipping")
@each_optimizer
@each_chosen
def test_implementation_applies_clipped_gradients(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], clip=1.0)
    plain = subject.trainer(exact_linear(), recipe)
    scaled = subject.trainer(exact_linear(), recipe.replace(scaling=SCALING, implementation=implementation))
    for value in (8.0, 2.0**-6, 1.0):
        norms = [run.apply_gradients(full(run, value)).gradient_norm for run in (plain, scaled)]
        verdict.equal(norms[1], norms[0], f"norm of gradients of {value}, scaled against unscaled", "norm-differs")
        near = norms[0] is None or math.isclose(norms[0], 6.0 * value, rel_tol=2.0**-21)
        verdict.holds(near, f"norm of 36 gradients of {value}", norms[0], 6.0 * value, "norm-differs")
    gap = max(
        float(np.abs(scaled.parameters()[name] - value).max() / np.abs(value).max())
        for name, value in plain.parameters().items()
    )
    bound = 3 * 2.0**-23
    verdict.holds(gap <= bound, "relative distance of the weights after three clipped updates", gap, f"<= {bound}")


@clause("optimizer.implementations-agree")
@each_chosen
def test_implementation_clips_under_autocast(
    subject: Subject, verdict: Verdict, implementation: Implementation
) -> None:
    recipe = Recipe(SGD(0.5), BFLOAT16, clip=1.0)
    default, chosen = (
        subject.trainer(exact_linear(), variant) for variant in (recipe, recipe.replace(implementation=implementation))
    )
    for value in (8.0, 2.0**-6):
        norms = [run.apply_gradients(full(run, value)).gradient_norm for run in (default, chosen)]
        verdict.equal(norms[1], norms[0], f"norm of gradients of {value}, against the default's", "norm-differs")
    verdict.same_state(chosen.parameters(), default.parameters(), "parameters after two updates", "clipped-otherwise")


@clause("scaling.is-transparent")
@pytest.mark.parametrize("precision", [FLOAT32, Precision("O3", "float16")], ids=lambda p: p.format)
@each_optimizer
@each_chosen
def test_implementation_unscales_every_element(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str, precision: Precision
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], precision, scaling=SCALING, implementation=implementation)
    judge_updates(subject, verdict, vectors(1, 17, 64), recipe, (0, -1, 0))


@clause("accumulation.groups-change-nothing")
@each_optimizer
@each_chosen
def test_implementation_with_groups_equals_one_group(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], implementation=implementation)
    one, two = (subject.trainer(two_heads(), recipe.replace(groups=groups)) for groups in (1, 2))
    for value in (1.0, 2.0**-3):
        for run in (one, two):
            run.apply_gradients(full(run, value))
    verdict.same_state(two.parameters(), one.parameters(), "parameters of two groups, against one", "groups-differ")


@clause("scaling.skip-is-not-a-step")
@each_optimizer
@each_implementation
def test_hooks_run_only_after_applied_updates(
    subject: Subject, verdict: Verdict, implementation: Implementation, optimizer: str
) -> None:
    need(subject, Capability.STEP_HOOKS)
    trainer = run_two_updates(subject, OPTIMIZERS[optimizer], implementation=implementation)
    before, calls = trainer.hook_calls(), []
    for value in (1.0, math.inf, 2.0**-3, math.nan):
        trainer.apply_gradients(full(trainer, value))
        calls.append(trainer.hook_calls() - before)
    verdict.equal(calls, [1, 1, 2, 2], "calls of a hook behind the step after finite, inf, finite, NaN", "hook-ran")


@clause("scaling.skip-is-not-a-step")
@each_implementation
def test_averages_and_schedules_follow_applied_updates(
    subject: Subject, verdict: Verdict, implementation: Implementation
) -> None:
    need(subject, Capability.AVERAGE)
    trainer, plain = (
        run_two_updates(subject, OPTIMIZERS["sgd"], implementation=implementation, average=0.5) for _ in range(2)
    )
    for value in (1.0, math.inf, 2.0**-3, math.nan):
        update = trainer.apply_gradients(full(trainer, value))
        if math.isfinite(value):
            verdict.equal(
                update.learning_rate, plain.apply_gradients(full(plain, value)).learning_rate, "learning rate"
            )
    states = trainer.optimizer_state(), plain.optimizer_state()
    verdict.same_state(*states, "averages and schedule, against the run without skips", "moved-by-a-skip")
