"""Gradient accumulation: k micro-batches make one update."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, full, naming_the_layer, narrow
from conformance.oracle import errormodel
from fixtures.data import digits_batch, exact_batch, one_hot_batch, token_batch
from fixtures.model import Batch
from fixtures.models import (
    digits_convolution,
    digits_mlp,
    dropout_probe,
    embedding_model,
    encoder,
    exact_linear,
    scalar,
    sincos,
)
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MASTERED,
    PURE_LOW,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Optimizer,
    Precision,
    Recipe,
    Steps,
)
from frameworks.contract import Capability

RECIPE = Recipe(SGD(2.0**-4))
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(2.0**-4),
    "momentum": SGD(2.0**-4, momentum=0.5),
    "adam": Adam(2.0**-6),
    "adamw": AdamW(2.0**-6, weight_decay=2.0**-3),
}


@clause("accumulation.equals-full-batch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_micro_batches_match_full_batch_bitwise(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    k = 4
    recipe = Recipe(OPTIMIZERS[optimizer])
    whole, parts = (subject.trainer(exact_linear(), recipe.replace(accumulation=n)) for n in (1, k))
    exact, batch = subject.oracle(exact_linear(), recipe), exact_batch(8)
    losses = [run.update((batch,)).loss for run in (exact, whole)]
    verdict.equal([losses[1], parts.update(batch.into(k)).loss], losses[:1] * 2, "loss of the batch and of the window")
    if isinstance(recipe.optimizer, SGD):
        verdict.same_state(
            whole.parameters(), narrow(exact.parameters()), "parameters after the batch", "not-full-batch"
        )
    verdict.same_state(parts.parameters(), whole.parameters(), f"parameters after {k} micro-batches", "not-full-batch")


@clause("accumulation.equals-full-batch")
@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_accumulated_training_stays_within_full_batch_envelope(
    subject: Subject, verdict: Verdict, optimizer: str, k: int
) -> None:
    model, recipe = digits_mlp((32,)), Recipe(SGD(0.1) if optimizer == "sgd" else Adam())
    whole = [digits_batch(24, 24 * i) for i in range(3)]
    expected = subject.envelope(model, recipe, [(batch,) for batch in whole])
    measured = errormodel.run(
        subject.trainer(model, recipe.replace(accumulation=k)), [batch.into(k) for batch in whole]
    )
    with naming_the_layer(subject, model, recipe, whole[0]):
        verdict.within(*expected.gradient(measured.gradient), "relative distance of the gradient from the full batch's")
        verdict.within(
            *expected.parameters(measured.parameters), "relative distance of the parameters from the full batch's"
        )


@clause("accumulation.weighs-items")
@pytest.mark.parametrize("sizes", [(3, 1), (1, 2, 1)], ids=lambda s: "+".join(map(str, s)))
def test_unequal_micro_batches_are_weighted_by_samples(
    subject: Subject, verdict: Verdict, sizes: tuple[int, ...]
) -> None:
    batch = exact_batch(sum(sizes))
    parts = subject.trainer(exact_linear(), RECIPE.replace(accumulation=len(sizes)))
    whole = subject.oracle(exact_linear(), RECIPE)
    whole.update((batch,))
    parts.update(batch.split(*sizes))
    expected = narrow(whole.parameters())
    verdict.same_state(parts.parameters(), expected, f"parameters after {sizes} samples", "mean-of-means")


@clause("accumulation.weighs-items")
def test_ragged_sequences_are_weighted_by_tokens(subject: Subject, verdict: Verdict) -> None:
    model, drawn = encoder(width=16, heads=2, blocks=1), token_batch(4, seed=subject.seed)
    assert drawn.mask is not None
    order = np.argsort(drawn.mask.sum(axis=1), kind="stable")
    batch = Batch(drawn.inputs[order], {k: v[order] for k, v in drawn.targets.items()}, drawn.mask[order])
    expected = subject.envelope(model, RECIPE, [(batch,)])
    measured = errormodel.run(subject.trainer(model, RECIPE.replace(accumulation=2)), [batch.into(2)])
    verdict.within(
        *expected.gradient(measured.gradient),
        "relative distance of the gradient from the full batch's",
        "mean-of-means",
    )
    loss, bound, _ = expected.worst_loss(measured.losses)
    verdict.within(loss, bound, "distance of the loss from the full batch's", "mean-of-means")


@clause("accumulation.weighs-items")
@pytest.mark.parametrize("position", [0, 1], ids=["first", "last"])
def test_fully_masked_micro_batch_has_no_weight(subject: Subject, verdict: Verdict, position: int) -> None:
    model, batch = encoder(width=16, heads=2, blocks=1), token_batch(4, seed=subject.seed)
    assert batch.mask is not None
    parts = [batch, replace(batch, mask=np.zeros_like(batch.mask))]
    expected = subject.envelope(model, RECIPE, [(batch,)])
    trainer = subject.trainer(model, RECIPE.replace(accumulation=2))
    measured = errormodel.run(trainer, [tuple(parts if position else reversed(parts))])
    verdict.finite(trainer.parameters(), "parameters after a window with an empty micro-batch", "empty-counts")
    verdict.within(
        *expected.gradient(measured.gradient),
        "relative distance of the gradient from that of the other micro-batch",
        "mean-of-means",
    )
    loss, bound, _ = expected.worst_loss(measured.losses)
    verdict.within(loss, bound, "distance of the loss from that of the other micro-batch", "mean-of-means")


@clause("accumulation.nothing-before-boundary")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_only_accumulator_changes_inside_window(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe = Recipe(
        OPTIMIZERS[optimizer], accumulation=4, schedule=Steps((1,), (1.0, 0.5)), scaling=scaling_if(subject)
    )
    trainer = subject.trainer(exact_linear(), recipe)
    trainer.update(exact_batch(8).into(4))
    before = subject.state(trainer)
    for batch in exact_batch(8, seed=1).into(4)[:3]:
        trainer.accumulate(batch, 8)
        now = subject.state(trainer)
        verdict.same_state(now, before, "training state (excluding accumulator)", ignoring=("accumulator/", "random/"))
    trainer.accumulate(exact_batch(8, seed=1).into(4)[3], 8)
    trainer.apply()
    moved = {k: v for k, v in trainer.state().items() if k.startswith("parameter/")}
    verdict.differs({k: before[k] for k in moved}, moved, "the fourth micro-batch ends the window")


def scaling_if(subject: Subject) -> DynamicScaling | None:
    """Return dynamic scaling at 2^10 if its growth interval counts updates; None if it counts micro-batches."""
    declared = subject.framework.declares(Capability.DYNAMIC_SCALING).supported
    counted = subject.conventions.scaler.counts == "updates"
    return DynamicScaling(initial=2.0**10) if declared and counted else None


@clause("accumulation.evaluation-changes-nothing")
@pytest.mark.parametrize("inside", [False, True], ids=["between-windows", "inside-a-window"])
def test_prediction_does_not_change_training_state(subject: Subject, verdict: Verdict, inside: bool) -> None:
    trainer = subject.trainer(digits_convolution(0.25, 2), RECIPE.replace(accumulation=2))
    parts = digits_batch(8, image=True).into(2)
    trainer.update(parts)
    if inside:
        trainer.accumulate(parts[0], 8)
    before = subject.state(trainer)
    first, second = (trainer.predict(100.0 * parts[1].inputs) for _ in range(2))
    verdict.equal(second, first, "two predictions of the same inputs")
    verdict.same_state(subject.state(trainer), before, "training state after two predictions")


@clause("accumulation.evaluation-changes-nothing")
@pytest.mark.parametrize("inside", [False, True], ids=["between-windows", "inside-a-window"])
def test_training_mode_resumes_after_prediction(subject: Subject, verdict: Verdict, inside: bool) -> None:
    evaluated, plain = (subject.trainer(digits_convolution(0.25, 2), RECIPE.replace(accumulation=2)) for _ in range(2))
    parts = digits_batch(8, image=True).into(2)
    for run in (evaluated, plain):
        run.update(parts)
        if inside:
            run.accumulate(parts[0], 8)
        if run is evaluated:
            run.predict(parts[1].inputs)
        if inside:
            run.accumulate(parts[1], 8)
            run.apply()
        run.update(parts)
    after, expected = subject.state(evaluated), subject.state(plain)
    verdict.same_state(after, expected, "training state after a prediction and more training", "not-training")


@clause("accumulation.evaluation-changes-nothing")
def test_prediction_before_update_does_not_change_update(subject: Subject, verdict: Verdict) -> None:
    evaluated, plain = (subject.trainer(exact_linear(), RECIPE) for _ in range(2))
    batch = exact_batch(8)
    for run in (evaluated, plain):
        run.accumulate(batch, 8)
        if run is evaluated:
            run.predict(batch.inputs)
        run.apply()
    outputs = [run.predict(batch.inputs) for run in (evaluated, plain)]
    verdict.equal(outputs[0], outputs[1], "prediction after a prediction and an update", "not-training")
    after, expected = subject.state(evaluated), subject.state(plain)
    verdict.same_state(after, expected, "training state after a prediction and the update", "not-training")


@clause("accumulation.each-counts-once")
def test_each_micro_batch_contributes_once(subject: Subject, verdict: Verdict) -> None:
    batch = one_hot_batch(8)
    parts = subject.trainer(exact_linear(), RECIPE.replace(accumulation=8))
    whole = subject.oracle(exact_linear(), RECIPE)
    for window in (1, 2):
        whole.update((batch,))
        parts.update(batch.into(8))
        verdict.same_state(parts.parameters(), narrow(whole.parameters()), f"parameters after window {window}")
    nonzero = {name: value for name, value in parts.accumulator().items() if np.any(value)}
    verdict.equal(sorted(nonzero), [], "accumulator after the boundary")


@clause("accumulation.each-counts-once")
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16, *MASTERED, *PURE_LOW], ids=lambda p: p.label)
def test_each_micro_batch_contributes_once_in_every_format(
    subject: Subject, verdict: Verdict, precision: Precision
) -> None:
    trainer = subject.trainer(exact_linear(4, 1), Recipe(SGD(1.0), precision, accumulation=4))
    before, feeds = trainer.master_parameters(), [full(trainer, 0.0) for _ in range(4)]
    for row, gradients in enumerate(feeds):
        gradients["0.output.weight"][row] = 0.5
    trainer.apply_gradients(*feeds)
    moved = {"0.output.weight": 0.125, "0.output.bias": 0.0}
    expected = {name: (value.astype(np.float64) - moved[name]).astype(value.dtype) for name, value in before.items()}
    verdict.same_state(trainer.master_parameters(), expected, "weights, each row moved by one micro-batch")


@clause("accumulation.repeated-rows")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_repeated_embedding_row_gets_summed_gradient(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    ids = np.array([[3, 3, 3, 5, 5, 1], [3, 1, 1, 2, 7, 7]], np.int64)
    batch, model, recipe = Batch(ids, {"output": np.array([0, 2])}), embedding_model(), Recipe(OPTIMIZERS[optimizer])
    expected = subject.envelope(model, recipe, [(batch,)] * 2)
    measured = errormodel.run(subject.trainer(model, recipe), [(batch,)] * 2)
    verdict.within(*expected.gradient(measured.gradient), "relative distance of the gradient", "rows-not-summed")
    verdict.within(*expected.parameters(measured.parameters), "relative distance of the parameters", "rows-not-summed")


@clause("accumulation.once-per-window")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.25], ids=["unclipped", "clipped"])
def test_optimizer_clipping_and_schedule_act_once_per_window(
    subject: Subject, verdict: Verdict, optimizer: str, clip: float | None
) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], clip=clip, schedule=Steps((1, 2), (1.0, 0.5, 0.25)))
    whole, parts = (subject.trainer(exact_linear(), recipe.replace(accumulation=n)) for n in (1, 4))
    for step in range(3):
        micro = [full(whole, (2.0**-step) * f) for f in (1.0, -0.5, 2.0, 1.5)]
        for gradients, turn in zip(micro, (1.0, -2.0, -0.5, 4.0), strict=True):
            gradients["0.output.bias"] *= np.float32(turn)
        mean = {name: np.asarray(np.mean([m[name] for m in micro], 0, np.float32)) for name in micro[0]}
        rates = whole.apply_gradients(mean).learning_rate, parts.apply_gradients(*micro).learning_rate
        verdict.equal(rates, (recipe.optimizer.learning_rate * 0.5**step,) * 2, f"learning rates of window {step}")
        verdict.same_state(parts.parameters(), whole.parameters(), f"parameters after window {step}")
    measured, expected = (run.optimizer_state() for run in (parts, whole))
    verdict.same_state(measured, expected, "optimizer state after three windows")


@clause("accumulation.keeps-precision")
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16, *MASTERED, *PURE_LOW], ids=lambda p: p.label)
def test_small_contributions_survive_accumulation(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    k = 64
    trainer = subject.trainer(scalar(0.0), Recipe(SGD(1.0), precision, accumulation=k))
    before = trainer.master_parameters()
    trainer.apply_gradients(full(trainer, 1.0), *[full(trainer, 2.0**-12)] * (k - 1))
    mean = (1.0 + (k - 1) * 2.0**-12) / k
    expected = {name: np.full_like(value, -mean) for name, value in before.items()}
    verdict.equal(
        trainer.master_parameters(), expected, "parameters after 1 + 63 × 2^-12, a mean of 64", "contributions-lost"
    )


@clause("accumulation.keeps-precision")
def test_gradients_accumulate_in_their_own_format(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(sincos(2), Recipe(SGD(1.0), accumulation=4))
    before = trainer.parameters()
    fine = {name: 2.0 ** (-40 if value.dtype == np.float64 else -12) for name, value in before.items()}
    small = {name: np.full_like(value, fine[name]) for name, value in before.items()}
    trainer.apply_gradients(full(trainer, 1.0), small, small, small)
    expected = {name: value - value.dtype.type((1.0 + 3 * fine[name]) / 4) for name, value in before.items()}
    verdict.same_state(trainer.parameters(), expected, "parameters in float32 and float64", "contributions-lost")


@clause("accumulation.once-per-window")
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_clipping_uses_mean_gradient_of_window(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe, batch = Recipe(OPTIMIZERS[optimizer], clip=2.0**-2), exact_batch(8)
    whole, parts = (subject.trainer(exact_linear(), recipe.replace(accumulation=k)) for k in (1, 4))
    whole.update((batch,))
    parts.update(batch.into(4))
    verdict.same_state(parts.parameters(), whole.parameters(), "parameters after a clipped window", "differs")


@clause("accumulation.one-is-identity")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_window_of_one_equals_no_accumulation(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    recipe = Recipe(OPTIMIZERS[optimizer], accumulation=1)
    at_once, manual = subject.trainer(exact_linear(), recipe), subject.trainer(exact_linear(), recipe)
    for seed in range(2):
        batch = exact_batch(8, seed=seed)
        at_once.update((batch,))
        manual.accumulate(batch, batch.items)
        manual.apply()
    measured, expected = subject.state(manual), subject.state(at_once)
    verdict.same_state(measured, expected, "training state after two windows of one micro-batch")


@clause("accumulation.fresh-dropout")
def test_each_micro_batch_has_its_own_dropout_mask(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(dropout_probe(), Recipe(SGD(0.0), accumulation=2))
    batch = exact_batch(1, 64, 1)
    batch = type(batch)(np.ones((1, 64), np.float32), {"output": np.full((1, 1), 1000.0, np.float32)})
    first, second = (trainer.gradients((part,))["1.output.weight"] != 0 for part in (batch, batch))
    verdict.holds(0 < first.sum() < 64, "a mask keeps some and drops some", int(first.sum()), "1 to 63")
    verdict.holds(
        bool((first != second).any()), "two micro-batches draw different masks", int((first != second).sum()), "> 0"
    )


@clause("accumulation.batch-statistics")
def test_observe_running_statistics_updates_per_window(subject: Subject, verdict: Verdict) -> None:
    trainer = subject.trainer(digits_convolution(0.0, 2), RECIPE.replace(accumulation=4))
    moves, before = 0, trainer.buffers()
    for part in digits_batch(16, image=True).into(4):
        trainer.accumulate(part, 16)
        after = trainer.buffers()
        moves += not all(np.array_equal(before[n], after[n]) for n in after)
        before = after
    trainer.apply()
    verdict.observe("moves-in-a-window-of-4", moves)
    verdict.holds(moves >= 1, "running statistics move in training", moves, ">= 1")


@clause("accumulation.bytes-flat-in-k")
def test_saved_bytes_are_independent_of_window_size(subject: Subject, verdict: Verdict) -> None:
    measured: dict[str, float] = {}
    for k in (1, 2, 4, 8):
        trainer = subject.trainer(digits_mlp((256, 128)), RECIPE.replace(accumulation=k))
        parts = digits_batch(32 * k).into(k)
        for part in parts[:-1]:
            trainer.accumulate(part, 32 * k)
        measured[str(k)] = float(trainer.saved_bytes(parts[-1]))
        verdict.measure(f"saved bytes of a micro-batch of 32, k = {k}", "B", [measured[str(k)]])
    verdict.equal(
        list(measured.values()), [measured["1"]] * 4, "bytes between forward and backward of the last micro-batch"
    )
