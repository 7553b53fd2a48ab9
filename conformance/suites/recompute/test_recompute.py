"""Recomputation, also called gradient checkpointing: the same training for fewer stored activations."""

import random
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause
from conformance.techniques import recompute
from fixtures.arrays import Array
from fixtures.data import digits_batch, token_batch, vector_batch, wide_batch
from fixtures.model import Activation, Batch, Dense, Dropout, Head, Heads, Layer, Model, Residual
from fixtures.models import blocks, digits_convolution, digits_mlp, encoder
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Precision, Recipe, Recompute
from frameworks.base.recompute import draw_exponent
from frameworks.contract import RecomputeCase

RECIPE = Recipe(SGD(2.0**-4, momentum=0.5))
PLAIN: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "mlp": lambda: (digits_mlp((64, 32)), digits_batch(8)),
    "convolution": lambda: (digits_convolution(0.0, 4), digits_batch(4, image=True)),
    "encoder": lambda: (encoder(width=16, heads=2, blocks=1), token_batch(2)),
}
RANDOM: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "mlp": lambda: (make_dropout_model(), digits_batch(8)),
    "encoder": lambda: (encoder(width=16, heads=2, blocks=1, dropout=0.25), token_batch(2)),
}
UPDATES = 12
"""Enough updates for a gradient's last bits to affect a loss at any seed."""
CONTAINERS = [case for case in get_args(RecomputeCase) if case in ("positional", "tuple", "list", "dict", "keyword")]


def make_dropout_model(rate: float = 0.5) -> Model:
    """Return a model of two dense layers, each followed by dropout."""
    layers: tuple[Layer, ...] = (Dense(32), Activation("tanh"), Dropout(rate), Dense(32), Dropout(rate))
    return Model("dropped", (*layers, Heads((Head("output", 10),))), (784,), (("output", "cross_entropy"),))


def make_model_and_batch(
    subject: Subject, fixtures: dict[str, Callable[[], tuple[Model, Batch]]], name: str, variant: str
) -> tuple[Model, Batch]:
    """Return a fixture, with vectors instead of ids if the variant is documented to need an input with a gradient."""
    model, batch = fixtures[name]()
    if model.integer_inputs and variant in subject.conventions.gradient_input:
        dropout = 0.25 if fixtures is RANDOM else 0.0
        return encoder(width=16, heads=2, blocks=1, dropout=dropout, embedded=False), vector_batch(2, width=16)
    return model, batch


@clause("recompute.same-loss")
@pytest.mark.parametrize("segments", [3])
@pytest.mark.parametrize("fixture", PLAIN)
def test_losses_match_bitwise(subject: Subject, verdict: Verdict, fixture: str, segments: int, variant: str) -> None:
    model, batch = make_model_and_batch(subject, PLAIN, fixture, variant)
    plain, recomputed = recompute.make_runs(subject, model, RECIPE, Recompute(segments, variant=variant))
    expected = [plain.update((batch,)).loss for _ in range(UPDATES)]
    measured = [recomputed.update((batch,)).loss for _ in range(UPDATES)]
    recompute.same_losses(subject, verdict, measured, expected, (model, RECIPE, batch))


@clause("recompute.same-gradients")
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("fixture", ["convolution", "encoder"])
def test_gradients_match_bitwise(subject: Subject, verdict: Verdict, fixture: str, segments: int, variant: str) -> None:
    model, batch = make_model_and_batch(subject, PLAIN, fixture, variant)
    plain, recomputed = recompute.make_runs(subject, model, RECIPE, Recompute(segments, variant=variant))
    expected, measured = plain.gradients((batch,)), recomputed.gradients((batch,))
    recompute.same_gradients(subject, verdict, measured, expected, (model, RECIPE, batch))


@clause("recompute.replays-dropout")
@pytest.mark.parametrize("segments", [2])
@pytest.mark.parametrize("fixture", RANDOM)
def test_dropout_masks_are_replayed(
    subject: Subject, verdict: Verdict, fixture: str, segments: int, variant: str
) -> None:
    model, batch = make_model_and_batch(subject, RANDOM, fixture, variant)
    control = [subject.trainer(model, RECIPE).gradients((batch,)) for _ in range(2)]
    if any(not np.array_equal(control[0][name], control[1][name]) for name in control[0]):
        verdict.abstain("two plain runs of one seed draw different masks")
    recomputed = subject.trainer(model, RECIPE.replace(recompute=Recompute(segments, variant=variant)))
    measured, what = recomputed.gradients((batch,)), "every gradient under dropout"
    recompute.same_gradients(
        subject, verdict, measured, control[0], (model, RECIPE, batch), what=what, signature="mask-redrawn"
    )


@clause("recompute.random-stream-unmoved")
def test_later_random_numbers_match(subject: Subject, verdict: Verdict, variant: str) -> None:
    model, batch = RANDOM["mlp"]()
    plain, recomputed = recompute.make_runs(subject, model, RECIPE, Recompute(2, variant=variant))
    for run in (plain, recomputed):
        run.gradients((batch,))
    verdict.same_state(recomputed.random_state(), plain.random_state(), "random state after one step", "stream-moved")
    losses = [run.update((batch,)).loss for run in (plain, recomputed)]
    verdict.equal(losses[1], losses[0], "loss of the next step, which draws new masks", "stream-moved")


@clause("recompute.statistics-once")
@pytest.mark.parametrize("segments", [1, 3])
def test_running_statistics_update_once_per_step(
    subject: Subject, verdict: Verdict, segments: int, variant: str
) -> None:
    model, batch = PLAIN["convolution"]()
    plain, recomputed = recompute.make_runs(subject, model, RECIPE, Recompute(segments, variant=variant))
    for run in (plain, recomputed):
        run.update((batch,))
    verdict.differs(model.buffers(), plain.buffers(), "running statistics move at all")
    verdict.same_state(recomputed.buffers(), plain.buffers(), "running statistics after one step", "statistics-twice")


@clause("recompute.replays-autocast")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
@pytest.mark.parametrize("fixture", ["encoder"])
def test_recomputed_forward_uses_precision_of_forward(
    subject: Subject, verdict: Verdict, fixture: str, precision: Precision, variant: str
) -> None:
    model, _ = make_model_and_batch(subject, PLAIN, fixture, variant)
    of_ids = model.integer_inputs
    batches = [token_batch(2, seed=i) if of_ids else vector_batch(2, width=16, seed=i) for i in range(6)]
    recipe = RECIPE.replace(precision=precision)
    plain, recomputed = recompute.make_runs(subject, model, recipe, Recompute(2, variant=variant))
    wide = subject.trainer(model, RECIPE).gradients((batches[0],))
    expected, measured = ([run.gradients((batch,)) for batch in batches] for run in (plain, recomputed))
    verdict.differs(wide, expected[0], f"{precision.label} differs from float32, so that a wrong replay would show")
    for index, (batch, one, other) in enumerate(zip(batches, measured, expected, strict=True)):
        what = f"every gradient of batch {index}"
        recompute.same_gradients(
            subject, verdict, one, other, (model, recipe, batch), what=what, signature="precision-not-replayed"
        )


@clause("recompute.replays-autocast")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
def test_inner_segments_use_precision_of_forward(
    subject: Subject, verdict: Verdict, precision: Precision, variant: str
) -> None:
    model, batch = digits_mlp((64, 32, 16)), digits_batch(8)
    recipe = RECIPE.replace(precision=precision)
    expected, measured = (
        run.gradients((batch,))
        for run in recompute.make_runs(subject, model, recipe, Recompute(2, depth=2, variant=variant))
    )
    recompute.same_gradients(
        subject, verdict, measured, expected, (model, recipe, batch), signature="precision-not-replayed"
    )


@clause("recompute.replays-autocast")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.label)
def test_segment_boundary_between_matmul_and_activation(
    subject: Subject, verdict: Verdict, precision: Precision, variant: str
) -> None:
    residual = Residual((Dense(12, bias=False),))
    layers: tuple[Layer, ...] = (Dense(12), Activation("tanh"), residual, Activation("gelu"))
    model = Model("cut", (*layers, Heads((Head("output", 10),))), (784,), (("output", "cross_entropy"),))
    recipe, batch = RECIPE.replace(precision=precision), digits_batch(8)
    expected, measured = (
        run.gradients((batch,)) for run in recompute.make_runs(subject, model, recipe, Recompute(4, variant=variant))
    )
    recompute.same_gradients(
        subject, verdict, measured, expected, (model, recipe, batch), signature="precision-not-replayed"
    )


@clause("recompute.no-grad-input")
def test_parameters_train_when_no_input_needs_a_gradient(subject: Subject, verdict: Verdict, variant: str) -> None:
    x, w = probe_arrays()
    plain = subject.framework.recompute("plain", x, w)
    measured = subject.framework.recompute("no-grad-input", x, w, variant)
    recompute.same_values(subject, verdict, {"value": measured.value}, {"value": plain.value}, (x, w))
    verdict.holds(measured.w is not None, "the weight has a gradient", measured.w, plain.w, "gradient-missing")
    recompute.same_values(subject, verdict, {"w": measured.w}, {"w": plain.w}, (x, w))


@clause("recompute.no-grad-input")
def test_first_segment_trains(subject: Subject, verdict: Verdict, variant: str) -> None:
    model, batch = PLAIN["mlp"]()
    trainer = subject.trainer(model, RECIPE.replace(recompute=Recompute(2, variant=variant)))
    before = {name: value for name, value in trainer.parameters().items() if name.startswith("0.")}
    trainer.update((batch,))
    after = {name: value for name, value in trainer.parameters().items() if name.startswith("0.")}
    verdict.differs(before, after, "parameters of the first layer after one update", "gradient-missing")


def probe_arrays() -> tuple[Array, Array]:
    """Return x of shape (4, 8) and w of shape (8, 3), both float32."""
    rng = np.random.default_rng(9)
    return rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)


@clause("recompute.containers")
@pytest.mark.parametrize("container", CONTAINERS)
def test_tensors_in_containers_are_differentiated_or_refused(
    subject: Subject, verdict: Verdict, container: RecomputeCase, variant: str
) -> None:
    x, w = probe_arrays()
    plain = subject.framework.recompute("plain", x, w)
    try:
        measured = subject.framework.recompute(container, x, w, variant)
    except (TypeError, ValueError, RuntimeError) as refusal:
        verdict.observe(container, "refused")
        verdict.holds(bool(str(refusal)), "the refusal says why", str(refusal), "a message")
        return
    verdict.observe(container, "taken")
    recompute.same_values(subject, verdict, {"value": measured.value}, {"value": plain.value}, (x, w))
    for name, got, wanted in (("x", measured.x, plain.x), ("w", measured.w, plain.w)):
        verdict.holds(got is not None, f"{name} has a gradient", got, wanted, "gradient-missing")
        recompute.same_values(subject, verdict, {name: got}, {name: wanted}, (x, w), "gradient-differs")


@clause("recompute.nested")
@pytest.mark.parametrize("fixture", PLAIN)
def test_nested_recomputation(subject: Subject, verdict: Verdict, fixture: str, variant: str) -> None:
    model, batch = make_model_and_batch(subject, PLAIN, fixture, variant)
    plain, single = recompute.make_runs(subject, model, RECIPE, Recompute(2, variant=variant))
    single.gradients((batch,))
    try:
        nested = subject.trainer(model, RECIPE.replace(recompute=Recompute(2, depth=2, variant=variant)))
        measured = nested.gradients((batch,))
    except (TypeError, ValueError, RuntimeError) as refusal:
        verdict.observe(fixture, "refused")
        verdict.holds(bool(str(refusal)), "the refusal says why", str(refusal), "a message")
        return
    verdict.observe(fixture, "taken")
    recompute.same_gradients(subject, verdict, measured, plain.gradients((batch,)), (model, RECIPE, batch))


@clause("recompute.runs-forward-once-more")
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_each_segment_runs_exactly_twice(subject: Subject, verdict: Verdict, segments: int, variant: str) -> None:
    model, batch = PLAIN["mlp"]()
    plain, recomputed = recompute.make_runs(subject, model, RECIPE, Recompute(segments, variant=variant))
    for run in (plain, recomputed):
        for _ in range(2):
            run.update((batch,))
    verdict.equal(list(plain.segment_calls()), [2], "forward runs of two updates without recomputation")
    verdict.equal(
        list(recomputed.segment_calls()), [4] * segments, "forward runs of each segment in two updates", "not-once-more"
    )


@clause("recompute.detects-changed-weights")
def test_weights_changed_before_backward(subject: Subject, verdict: Verdict, variant: str) -> None:
    x, w = probe_arrays()
    plain = subject.framework.recompute("plain", x, w)
    try:
        measured = subject.framework.recompute("weights-changed", x, w, variant)
    except RuntimeError as refusal:
        verdict.observe("answer", "refused")
        verdict.holds(bool(str(refusal)), "the refusal says why", str(refusal), "a message")
        return
    verdict.observe("answer", "silent")
    recompute.same_values(subject, verdict, {"w": measured.w}, {"w": plain.w}, (x, w), "stale-weights-unnoticed")


@clause("recompute.frees-activations")
def test_activations_are_freed(subject: Subject, verdict: Verdict, variant: str) -> None:
    plain, recomputed = recompute.make_runs(subject, blocks(), RECIPE, Recompute(4, variant=variant))
    plain_bytes, less = plain.saved_bytes(wide_batch()), recomputed.saved_bytes(wide_batch())
    verdict.holds(less < plain_bytes, "bytes held with four segments", less, f"below {plain_bytes}", "nothing-saved")


@clause("recompute.saves-bytes")
def test_saved_bytes_by_segments(subject: Subject, verdict: Verdict, variant: str) -> None:
    for segments in (0, 2, 4, 8):
        recompute = Recompute(segments, variant=variant) if segments else None
        saved = subject.trainer(blocks(), RECIPE.replace(recompute=recompute)).saved_bytes(wide_batch())
        verdict.measure(f"saved bytes, {segments or 'no'} segments", "B", [float(saved)])


@clause("recompute.replays-dropout")
def test_dropout_is_active(subject: Subject, verdict: Verdict) -> None:
    model, batch = RANDOM["mlp"]()
    trainer = subject.trainer(model, RECIPE)
    first, second = trainer.gradients((batch,)), trainer.gradients((batch,))
    verdict.differs(first, second, "two steps draw different masks, so that a redrawn mask would show")


@clause("recompute.host-generators")
@pytest.mark.parametrize("case", ["draws-python", "draws-numpy"])
def test_draws_of_host_generators(subject: Subject, verdict: Verdict, case: RecomputeCase, variant: str) -> None:
    x, w = probe_arrays()
    states = random.getstate(), np.random.get_state()
    try:
        random.seed(1)
        np.random.seed(1)
        measured = subject.framework.recompute(case, x, w, variant)
        random.seed(1)
        np.random.seed(1)
        first = draw_exponent(case)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    plain = subject.framework.recompute("plain", np.ldexp(x, first), w)
    recompute.same_values(subject, verdict, {"value": measured.value}, {"value": plain.value}, (x, w))
    replays = measured.w is not None and plain.w is not None and np.allclose(measured.w, plain.w, rtol=2.0**-10)
    verdict.observe(case, "second pass draws as the first" if replays else "second pass draws again")
