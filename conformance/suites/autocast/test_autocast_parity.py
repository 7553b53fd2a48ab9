"""Parity: losses, gradients and final parameters inside the envelope of randomly rounded reference runs."""

from collections.abc import Callable

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, naming_the_layer
from conformance.checks.failing_layer import record_layers
from conformance.oracle import errormodel
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model, Window
from fixtures.models import digits_convolution, digits_mlp, encoder, exact_linear, shared_layers, sincos
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, Adam, AdamW, DynamicScaling, Optimizer, Precision, Recipe

FIXTURES: dict[str, tuple[Callable[[], Model], Callable[[int], Batch], int]] = {
    "exact-linear": (exact_linear, lambda i: exact_batch(8, seed=i), 3),
    "digits-mlp": (digits_mlp, lambda i: digits_batch(32, 32 * i), 3),
    "digits-small": (lambda: digits_mlp((32,), "tanh"), lambda i: digits_batch(32, 32 * i), 5),
    "digits-convolution": (lambda: digits_convolution(0.0, 4), lambda i: digits_batch(8, 8 * i, image=True), 3),
    "encoder": (lambda: encoder(blocks=1), lambda i: token_batch(8, seed=i), 3),
    "shared": (shared_layers, lambda i: token_batch(8, 6, 32, seed=i), 3),
    "sincos": (sincos, lambda i: sincos_batch(128, seed=i), 5),
}
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(0.05),
    "momentum": SGD(0.02, momentum=0.9),
    "adam": Adam(1e-3),
    "adamw": AdamW(1e-3, weight_decay=0.01),
    "adam-epsilon": Adam(2.0**-4, epsilon=0.25),
}
"""Optimizers by name. The last one's epsilon is as large as the gradients, so that its position in the rule matters."""
GENTLE: dict[str, Optimizer] = {"sgd": SGD(2.0**-13), "momentum": SGD(2.0**-17, momentum=0.9)}
"""Learning rates at which the two-head regression with its large gradients does not diverge."""
SMOOTH: dict[str, Optimizer] = {
    "adam": Adam(1e-3, epsilon=2.0**-12),
    "adamw": AdamW(1e-3, epsilon=2.0**-12, weight_decay=0.01),
}
"""Optimizers with an epsilon as large as a typical gradient. With a tiny one, a sign flipped by rounding moves a weight
by the learning rate."""
each_fixture = pytest.mark.parametrize("fixture", [name for name in FIXTURES if name != "digits-small"])


def judge(
    subject: Subject, verdict: Verdict, model: Model, recipe: Recipe, windows: list[Window], *, layers: bool = False
) -> None:
    """Make an A/A control, then compare a run with the envelope.

    Args:
        layers: whether the tensors of a first pass are recorded too.
    """
    measured = errormodel.run(subject.trainer(model, recipe), windows)
    control = subject.trainer(model, recipe)
    if not np.array_equal(measured.losses, [control.update(window).loss for window in windows]):
        verdict.abstain("A/A control: the same run twice gave different losses")
    expected = subject.envelope(model, recipe, windows)
    if not expected.count_judged():
        verdict.abstain("correct runs differ too much at the first update already")
    verdict.trace(
        "loss",
        loss=measured.losses,
        exact=expected.exact.losses,
        spread=expected.loss_spread,
        bound=expected.loss_bounds(),
    )
    names = [name for name in model.parameter_shapes() if name in measured.gradients]
    verdict.tensors("first", {f"parameter/{name}": measured.gradients[name] for name in names})
    if layers:
        record_layers(subject, verdict, model, recipe, windows[0][0])
    with naming_the_layer(subject, model, recipe, windows[0][0]):
        verdict.within(
            *expected.gradient(measured.gradient), "relative distance of the first gradient", "gradient-beyond-envelope"
        )
        verdict.within(
            *expected.gain(measured.gradient),
            "length of a parameter's gradient along the exact one, relatively",
            "gradient-beyond-envelope",
        )
        worst, bound, update = expected.worst_loss(measured.losses)
        verdict.within(worst, bound, f"distance of the loss from float64's at update {update}", "loss-beyond-envelope")
        verdict.within(
            *expected.parameters(measured.parameters),
            "relative distance of the final parameters",
            "parameters-beyond-envelope",
        )


def parity(subject: Subject, verdict: Verdict, fixture: str, optimizer: str, precision: Precision) -> None:
    """Compare a fixture's run with its envelope; float16 uses dynamic scaling if the framework has it."""
    make, batch, updates = FIXTURES[fixture]
    scaling = DynamicScaling(initial=2.0**8) if precision.format == "float16" else None
    gentle = {"sincos": GENTLE, "digits-small": SMOOTH}.get(fixture, {})
    recipe = Recipe(gentle.get(optimizer, OPTIMIZERS[optimizer]), precision, scaling)
    windows: list[Window] = [(batch(i),) for i in range(updates)]
    judge(subject, verdict, make(), recipe, windows, layers=optimizer == "sgd")


@clause("autocast.float32-parity")
@each_fixture
def test_float32_sgd_parity(subject: Subject, verdict: Verdict, fixture: str) -> None:
    parity(subject, verdict, fixture, "sgd", FLOAT32)


@clause("autocast.float32-parity")
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("fixture", ["exact-linear", "encoder", "sincos"])
def test_float32_optimizer_parity(subject: Subject, verdict: Verdict, fixture: str, optimizer: str) -> None:
    parity(subject, verdict, fixture, optimizer, FLOAT32)


@clause("autocast.float32-parity")
def test_adam_epsilon_placement(subject: Subject, verdict: Verdict) -> None:
    parity(subject, verdict, "exact-linear", "adam-epsilon", FLOAT32)


@clause("autocast.fp16-parity")
@each_fixture
def test_float16_sgd_parity(subject: Subject, verdict: Verdict, fixture: str) -> None:
    parity(subject, verdict, fixture, "sgd", FLOAT16)


@clause("autocast.fp16-parity")
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_float16_optimizer_parity(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    parity(subject, verdict, "digits-small", optimizer, FLOAT16)


@clause("autocast.bf16-parity")
@each_fixture
def test_bfloat16_sgd_parity(subject: Subject, verdict: Verdict, fixture: str) -> None:
    parity(subject, verdict, fixture, "sgd", BFLOAT16)


@clause("autocast.bf16-parity")
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_bfloat16_optimizer_parity(subject: Subject, verdict: Verdict, optimizer: str) -> None:
    parity(subject, verdict, "digits-small", optimizer, BFLOAT16)


@clause("autocast.final-quality")
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda p: p.label)
def test_accuracy_after_training(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    scaling = DynamicScaling(initial=2.0**8) if precision.format == "float16" else None
    model, recipe = digits_mlp((32,)), Recipe(Adam(5e-3), precision, scaling)
    windows, test = [(digits_batch(64, 64 * i),) for i in range(20)], digits_batch(500, 64 * 20)
    measured = errormodel.trained_accuracy(subject.trainer(model, recipe), windows, test)
    expected, bound = subject.quality(model, recipe, windows, test)
    verdict.observe("accuracy", measured)
    verdict.holds(
        expected > 0.75, "the oracle learns: accuracy of its ensemble", expected, "> 0.75", "oracle-did-not-learn"
    )
    verdict.within(
        abs(measured - expected), bound, f"distance of the accuracy {measured} from the ensemble's {expected}"
    )
