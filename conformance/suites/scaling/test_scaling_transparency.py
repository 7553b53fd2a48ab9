"""Loss scaling: updates and reports do not depend on the scale."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, need, spike_gradients
from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import encoder, exact_linear, scalar, sincos, two_heads
from fixtures.recipe import FLOAT16, FLOAT32, SGD, Adam, AdamW, DynamicScaling, Optimizer, Precision, Recipe, Steps
from frameworks.contract import Capability, Trainer

FIXTURES: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "exact-linear": lambda: (exact_linear(), exact_batch()),
    "sincos": lambda: (sincos(32), sincos_batch(64)),
    "encoder": lambda: (encoder(width=16, heads=2, blocks=1), token_batch(4)),
}
OPTIMIZERS: dict[str, Optimizer] = {"sgd": SGD(2.0**-8), "adam": Adam(), "adamw": AdamW()}
TRAINED = [
    *((fixture, optimizer) for fixture in ("exact-linear", "sincos") for optimizer in OPTIMIZERS),
    ("encoder", "adamw"),
]


def run_updates(subject: Subject, fixture: str, recipe: Recipe, updates: int = 3) -> Trainer:
    """Return a run of a fixture after `updates` updates on the same batch."""
    model, batch = FIXTURES[fixture]()
    trainer = subject.trainer(model, recipe)
    for _ in range(updates):
        trainer.update((batch,))
    return trainer


@clause("scaling.is-transparent")
@pytest.mark.parametrize(("fixture", "optimizer"), TRAINED)
def test_power_of_two_scales_match_bitwise(subject: Subject, verdict: Verdict, fixture: str, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer])
    expected = run_updates(subject, fixture, recipe.replace(scaling=DynamicScaling(initial=1.0))).parameters()
    for exponent in (1, 15) if fixture == "exact-linear" else (15,):
        scaled = run_updates(subject, fixture, recipe.replace(scaling=DynamicScaling(initial=2.0**exponent)))
        verdict.same_state(scaled.parameters(), expected, f"parameters after 3 updates at S = 2^{exponent}")


@clause("scaling.is-transparent")
@pytest.mark.parametrize("limit", [2.0**-6, 2.0**20], ids=["binding", "loose"])
@pytest.mark.parametrize("fixture", FIXTURES)
def test_clipping_matches_bitwise_at_any_scale(subject: Subject, verdict: Verdict, fixture: str, limit: float) -> None:
    recipe = Recipe(SGD(2.0**-8), clip=limit)
    expected = run_updates(subject, fixture, recipe.replace(scaling=DynamicScaling(initial=1.0)))
    for exponent in (4, 15) if fixture == "exact-linear" else (15,):
        scaled = run_updates(subject, fixture, recipe.replace(scaling=DynamicScaling(initial=2.0**exponent)))
        verdict.same_state(scaled.parameters(), expected.parameters(), f"parameters at S = 2^{exponent}")


@clause("scaling.is-transparent")
def test_scaling_equals_no_scaling(subject: Subject, verdict: Verdict) -> None:
    for fixture in FIXTURES:
        plain = run_updates(subject, fixture, Recipe(SGD(2.0**-8)))
        scaled = run_updates(subject, fixture, Recipe(SGD(2.0**-8), scaling=DynamicScaling(initial=2.0**12)))
        verdict.same_state(scaled.parameters(), plain.parameters(), f"{fixture}: parameters with and without scaling")


@clause("scaling.is-transparent")
@pytest.mark.parametrize("limit", [None, 2.0**-6], ids=["unclipped", "clipped"])
def test_window_matches_bitwise_at_any_scale(subject: Subject, verdict: Verdict, limit: float | None) -> None:
    recipe, batch = Recipe(SGD(2.0**-8), accumulation=2, clip=limit), exact_batch()
    unscaled, scaled = (
        subject.trainer(exact_linear(), recipe.replace(scaling=DynamicScaling(initial=2.0**exponent)))
        for exponent in (0, 10)
    )
    for run in (unscaled, scaled):
        run.update((batch, batch))
    verdict.same_state(scaled.parameters(), unscaled.parameters(), "parameters after a window of 2 at S = 2^10")


@clause("scaling.reports-true-loss")
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16], ids=lambda p: p.label)
def test_reported_loss_is_unscaled(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(SGD(0.0), precision, scaling=DynamicScaling()))
    batch = Batch(np.array([[4.0]], np.float32), {"output": np.array([[1.0]], np.float32)})
    update = trainer.update((batch,))
    verdict.equal(update.loss, 9.0, "reported loss at the default scale", "scaled-loss-reported")
    verdict.equal(list(update.micro_losses), [9.0], "reported loss of the micro-batch", "scaled-loss-reported")


@clause("scaling.reports-true-loss")
@pytest.mark.parametrize("exponent", [0, 10])
def test_reported_gradient_norm_is_unscaled(subject: Subject, verdict: Verdict, exponent: int) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(initial=2.0**exponent), clip=100.0))
    names = list(trainer.parameters())
    update = trainer.apply_gradients(
        {names[0]: np.full((1, 1), 3.0, np.float32), names[1]: np.full(1, 4.0, np.float32)}
    )
    norm = update.gradient_norm
    verdict.observe("norm-is-reported", norm is not None)
    verdict.holds(
        norm is None or norm == 5.0, "reported norm of the gradient (3, 4)", norm, 5.0, "scaled-norm-reported"
    )


@clause("scaling.reported-loss-is-not-invented")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
@pytest.mark.parametrize("k", [1, 2])
def test_nonfinite_loss_is_reported(subject: Subject, verdict: Verdict, k: int, bad: float) -> None:
    trainer = subject.trainer(scalar(1.0), Recipe(SGD(0.0), accumulation=k))
    finite = [Batch(np.array([[x]], np.float32), {"output": np.zeros((1, 1), np.float32)}) for x in (1.0, 2.0)]
    losses = [trainer.update((batch,) * k).loss for batch in finite]
    verdict.equal(losses, [1.0, 4.0], "losses of windows of finite micro-batches", "scaled-loss-reported")
    broken = Batch(finite[0].inputs, {"output": np.full((1, 1), bad, np.float32)})
    loss = trainer.update((*finite[: k - 1], broken)).loss
    known = {*losses, float(np.mean(losses))}
    what = "loss reported for a window with a non-finite one"
    verdict.holds(not math.isfinite(loss) or loss in known, what, loss, "a non-finite number", "loss-invented")


@clause("scaling.unscales-once")
def test_second_unscale_raises_or_is_ignored(subject: Subject, verdict: Verdict) -> None:
    need(subject, Capability.SECOND_UNSCALE)
    trainer = subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(initial=2.0**10)))
    before = trainer.parameters()
    trainer.apply_gradients(full(trainer, 1.0), unscale_calls=1)
    expected = {name: (value - np.float32(0.5)).astype(value.dtype) for name, value in before.items()}
    verdict.equal(trainer.parameters(), expected, "parameters after unscaling by hand once")
    try:
        trainer.apply_gradients(full(trainer, 1.0), unscale_calls=2)
    except RuntimeError as refusal:
        verdict.observe("second-unscale", "refused")
        verdict.holds(bool(str(refusal)), "the refusal says why", str(refusal), "a message")
        return
    verdict.observe("second-unscale", "ignored")
    twice = {name: (value - np.float32(0.5)).astype(value.dtype) for name, value in expected.items()}
    verdict.equal(trainer.parameters(), twice, "parameters after unscaling by hand twice", "unscaled-twice")


@clause("scaling.unscales-before-clipping")
@pytest.mark.parametrize("exponent", [0, 10, 15])
def test_clipping_sees_unscaled_gradients(subject: Subject, verdict: Verdict, exponent: int) -> None:
    scaling = DynamicScaling(initial=2.0**exponent)
    trainer, oracle = (
        make(scalar(), Recipe(SGD(1.0), scaling=scaling, clip=1.0)) for make in (subject.trainer, subject.oracle)
    )
    start = trainer.parameters()
    names = list(start)
    gradient = {names[0]: np.full((1, 1), 6.0, np.float32), names[1]: np.full(1, 8.0, np.float32)}
    for run in (trainer, oracle):
        run.apply_gradients(gradient)
    exact = oracle.parameters()
    for name, value in trainer.parameters().items():
        moved, wanted = float(start[name].item() - value.item()), float(start[name].item() - exact[name].item())
        units = abs(moved - wanted) / (2.0**-24 * max(abs(start[name].item()), 1.0))
        verdict.holds(
            units <= 4, f"{name} moves by its clipped gradient, to 4 units of rounding", moved, wanted, "clipped-scaled"
        )


@clause("scaling.scale-is-float32")
def test_scale_is_float32_or_wider(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(2.0**-6), scaling=DynamicScaling(initial=2.0**17)))
    update = trainer.apply_gradients(full(trainer, 2.0**-3))
    verdict.equal(update.scale_before, 2.0**17, "a scale beyond float16's range")
    verdict.holds(not update.skipped, "an update at that scale is applied", update.skipped, False)
    name = trainer.scaler_state()["scale"].dtype.name
    verdict.holds(name in ("float32", "float64"), "format of the scale", name, "float32 or float64")


@clause("scaling.scale-is-float32")
def test_scaling_a_low_precision_loss_does_not_overflow(subject: Subject, verdict: Verdict) -> None:
    recipe = Recipe(SGD(2.0**-6), FLOAT16)
    trainer, plain = (subject.trainer(scalar(), recipe.replace(scaling=s)) for s in (DynamicScaling(2.0**10), None))
    batch = Batch(np.ones((2, 1), np.float32), {"output": np.full((2, 1), -15.0, np.float32)})
    update = trainer.update((batch,))
    verdict.holds(not update.skipped, "a loss of 256 at S = 2^10 trains", update.skipped, False)
    verdict.equal(update.loss, 256.0, "reported loss")
    plain.update((batch,))
    formats = [{n: v.dtype.name for n, v in run.state().items() if "scaler/" not in n} for run in (trainer, plain)]
    verdict.equal(formats[0], formats[1], "formats of the state with and without scaling", "format-changed")
    verdict.same_state(trainer.parameters(), plain.parameters(), "parameters with and without scaling")


@clause("scaling.disabled-is-passthrough")
def test_disabled_scaling_is_passthrough(subject: Subject, verdict: Verdict) -> None:
    for fixture in FIXTURES:
        disabled = run_updates(subject, fixture, Recipe(Adam(), scaling=DynamicScaling(enabled=False)))
        plain = run_updates(subject, fixture, Recipe(Adam()))
        what = f"{fixture}: state with disabled scaling"
        verdict.same_state(subject.state(disabled), subject.state(plain), what, ignoring=("scaler/",))


@clause("scaling.disabled-is-passthrough")
@pytest.mark.parametrize("bad", [math.inf, math.nan], ids=str)
def test_disabled_scaling_passes_on_what_is_not_finite(subject: Subject, verdict: Verdict, bad: float) -> None:
    recipe = Recipe(Adam(), schedule=Steps((1, 3), (1.0, 0.5, 0.25)))
    disabled, plain = (
        subject.trainer(exact_linear(), recipe.replace(scaling=s)) for s in (DynamicScaling(enabled=False), None)
    )
    for index, value in enumerate((1.0, bad, 1.0)):
        for run in (disabled, plain):
            run.apply_gradients(spike_gradients(run, value, base=1.0))
        what = f"state after update {index} with disabled scaling"
        verdict.same_state(subject.state(disabled), subject.state(plain), what, ignoring=("scaler/",))


@clause("scaling.disabled-is-passthrough")
def test_enabled_scaling_is_never_silently_disabled(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(scalar(), Recipe(SGD(0.5), scaling=DynamicScaling(initial=2.0**10)))
    update = trainer.apply_gradients(spike_gradients(trainer, math.inf))
    verdict.finite(trainer.parameters(), "parameters after an overflow under enabled scaling", "applied-non-finite")
    verdict.equal(update.scale_before, 2.0**10, "the scale that was asked for", "silently-disabled")


@clause("scaling.two-losses")
def test_two_losses_under_one_scaler(subject: Subject, verdict: Verdict) -> None:
    x = exact_batch(outputs=2)
    batch = Batch(x.inputs, {"a": x.targets["output"], "b": -x.targets["output"]})
    recipe = Recipe(SGD(2.0**-6), scaling=DynamicScaling(2.0**10, interval=2))
    few_bits = {name: np.rint(w * 8).astype(w.dtype) / w.dtype.type(8) for name, w in two_heads().weights(0).items()}
    joint, separate = (subject.trainer(two_heads(), recipe.replace(separate_losses=s), few_bits) for s in (False, True))
    updates = [run.update((batch,)) for run in (joint, separate)]
    verdict.equal(updates[1].loss, updates[0].loss, "loss of two backward passes, compared with one")
    states = separate.parameters(), joint.parameters()
    verdict.same_state(*states, "parameters after two backward passes, compared with one")
    for index, head in enumerate("ab"):
        before = subject.state(separate)
        spoilt = {**batch.targets, head: np.full_like(batch.targets[head], np.inf)}
        overflow = separate.update((Batch(x.inputs, spoilt),))
        verdict.holds(overflow.skipped, f"an overflow in the loss of {head} skips the update", overflow.skipped, True)
        verdict.same_state(subject.state(separate), before, "training state after it", ignoring=("scaler/",))
        verdict.equal(overflow.scale_after, 2.0 ** (9 - index), "the scale moves once")


@clause("scaling.constant-from-histogram")
def test_constant_scale_from_histogram(subject: Subject, verdict: Verdict) -> None:
    model, batch = FIXTURES["encoder"]()
    gradients = subject.trainer(model).gradients((batch,))
    largest = max(float(np.abs(g).max()) for g in gradients.values())
    exponent = math.floor(math.log2(65504.0 / largest))
    verdict.observe("largest-power-of-two", exponent)
    verdict.holds(
        largest * 2.0**exponent <= 65504.0 < largest * 2.0 ** (exponent + 1), "largest S that stays finite", exponent
    )
