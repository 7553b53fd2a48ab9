"""Mixed precision: extent and end of the scope."""

from collections.abc import Generator
from threading import Thread

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need, of_one_pass
from fixtures.arrays import FORMATS, Array
from fixtures.data import digits_batch, token_batch
from fixtures.model import Batch
from fixtures.models import digits_convolution, digits_mlp, encoder, exact_linear
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, Adam, Precision, Recipe
from frameworks.contract import Capability
from frameworks.operations import CATALOGUE

each_half = pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.format)
RECIPE = Recipe(SGD(2.0**-4))


def product_format(subject: Subject) -> str:
    """Return the format of a matrix product of float32 operands under the current scope."""
    return subject.framework.run_op("matmul", *CATALOGUE["matmul"]()).dtype


@clause("autocast.parameters-stay-float32")
@each_half
@pytest.mark.parametrize("fixture", ["mlp", "convolution", "encoder"])
def test_parameters_and_gradients_stay_float32(
    subject: Subject, verdict: Verdict, fixture: str, precision: Precision
) -> None:
    model, batch = {
        "mlp": (digits_mlp((32,)), digits_batch(8)),
        "convolution": (digits_convolution(0.0, 2), digits_batch(4, image=True)),
        "encoder": (encoder(width=16, heads=2, blocks=1), token_batch(2)),
    }[fixture]
    trainer = subject.trainer(model, RECIPE.replace(precision=precision))
    gradients = trainer.gradients((batch,))
    trainer.update((batch,))
    for what, arrays in (("parameter", trainer.parameters()), ("gradient", gradients)):
        formats = sorted({value.dtype.name for value in arrays.values()})
        verdict.equal(formats, ["float32"], f"formats of every {what} after an update", "not-float32")


@clause("autocast.disabled-is-identity")
def test_disabled_scope_is_bitwise_identity(subject: Subject, verdict: Verdict) -> None:
    batch = digits_batch(16)
    plain, inside = (subject.trainer(digits_mlp((32,)), Recipe(Adam())) for _ in range(2))
    for _ in range(3):
        expected = plain.update((batch,)).loss
        with subject.framework.autocast(BFLOAT16, enabled=False):
            measured = inside.update((batch,)).loss
        verdict.equal(measured, expected, "loss inside a disabled scope")
    verdict.same_state(subject.state(inside), subject.state(plain), "state after three updates inside a disabled scope")


@clause("autocast.nested-disable")
@each_half
def test_disabled_region_inside_enabled_region(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    need(subject, Capability.of(precision))
    formats = []
    with subject.framework.autocast(precision):
        formats.append(product_format(subject))
        with subject.framework.autocast(precision, enabled=False):
            formats.append(product_format(subject))
        formats.append(product_format(subject))
    formats.append(product_format(subject))
    verdict.equal(
        formats, [precision.format, "float32", precision.format, "float32"], "inside, disabled, inside, outside"
    )


def yield_in_scope(subject: Subject, precision: Precision) -> Generator[str]:
    """Open a scope and yield a product's format; the test closes this generator while the scope is open."""
    with subject.framework.autocast(precision):
        yield product_format(subject)
        yield "never reached"


def record_and_raise(subject: Subject, precision: Precision, formats: list[str]) -> None:
    """Record the effect of a scope and leave it with an exception."""
    with subject.framework.autocast(precision):
        formats.append(product_format(subject))
        raise ZeroDivisionError


@clause("autocast.scope-restored")
@each_half
@pytest.mark.parametrize("leaving", ["return", "exception", "generator", "nested"])
def test_scope_is_restored_on_every_exit(
    subject: Subject, verdict: Verdict, leaving: str, precision: Precision
) -> None:
    need(subject, Capability.of(precision))
    before, inside = subject.framework.global_state(), ""
    if leaving == "return":
        with subject.framework.autocast(precision):
            inside = product_format(subject)
    elif leaving == "exception":
        formats: list[str] = []
        with pytest.raises(ZeroDivisionError):
            record_and_raise(subject, precision, formats)
        inside = formats[0]
    elif leaving == "generator":
        steps = yield_in_scope(subject, precision)
        inside = next(steps)
        steps.close()
    else:
        with subject.framework.autocast(precision), subject.framework.autocast(precision):
            inside = product_format(subject)
    verdict.equal(inside, precision.format, "format inside the scope")
    verdict.equal(product_format(subject), "float32", "format after the scope", "scope-leaked")
    after = subject.framework.global_state()
    subject.framework.restore_global_state(before)
    verdict.equal(after, before, "process-wide settings after the scope", "settings-leaked")


@clause("autocast.threads")
@each_half
def test_observe_autocast_in_new_thread(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    need(subject, Capability.of(precision))
    formats: list[str] = []
    with subject.framework.autocast(precision):
        thread = Thread(target=lambda: formats.append(product_format(subject)))
        thread.start()
        thread.join()
    verdict.observe("format-in-a-new-thread", formats[0])
    verdict.holds(formats[0] in (precision.format, "float32"), "format in a new thread", formats[0])


@clause("autocast.cast-is-fresh")
@each_half
def test_forward_uses_current_weights(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    recipe = RECIPE.replace(precision=precision, optimizer=SGD(1.0))
    model, batch = digits_mlp((16,)), digits_batch(8)
    inside, outside = subject.trainer(model, recipe), subject.trainer(model, recipe)
    with subject.framework.autocast(precision):
        first = inside.predict(batch.inputs)["output"]
        inside.update((batch,))
        second = inside.predict(batch.inputs)["output"]
        third = inside.update((batch,)).loss
    outside.update((batch,))
    verdict.differs({"output": first}, {"output": second}, "the update changes the prediction", "stale-cast")
    verdict.equal(
        second, outside.predict(batch.inputs)["output"], "prediction after an update in one open scope", "stale-cast"
    )
    verdict.equal(third, outside.update((batch,)).loss, "loss of the next update in that scope", "stale-cast")


@clause("autocast.no-grad-then-grad")
@each_half
def test_no_grad_forward_does_not_poison_next_forward(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    model, batch, recipe = digits_mlp((16,)), digits_batch(8), RECIPE.replace(precision=precision)
    expected = subject.trainer(model, recipe).gradients((batch,))
    trainer = subject.trainer(model, recipe)
    with subject.framework.autocast(precision):
        trainer.predict(batch.inputs)
        measured = trainer.gradients((batch,))
    verdict.same_gradients(measured, expected, "every gradient")


@clause("autocast.backward-in-forward-precision")
@each_half
def test_output_gradient_is_rounded_to_low_precision(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    form = FORMATS[precision.format]
    ulp, least = 2.0 ** (1 - form.bits), 2.0**form.smallest_exponent
    first, second = np.array([1 + ulp / 4, 1 + ulp * 3 / 4, 1 + ulp, least]), np.array([1.0, 1.0, 1.0, 0.0])
    x = np.zeros((2, 8), np.float32)
    x[:, 0] = 1.0, -1.0
    batch = Batch(x, {"output": -4.0 * np.stack([first, second]).astype(np.float32)})
    weights = {"0.output.weight": np.zeros((8, 4), np.float32), "0.output.bias": np.zeros(4, np.float32)}
    trainer = subject.trainer(exact_linear(), RECIPE.replace(precision=precision), weights)
    gradient = trainer.gradients((batch,))["0.output.weight"][0].astype(np.float64)
    expected = [0.0, ulp, ulp, least]
    verdict.equal(
        gradient.tolist(),
        expected,
        "1+e − 1 for gradients 1+e of two samples' outputs, e of 1/4, 3/4 and 1 ulp; then the smallest normal number",
        "backward-not-low",
    )


@clause("autocast.backward-in-forward-precision")
@each_half
def test_matmul_gradients_are_low_precision(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    of_one_pass(subject, verdict)
    batch = digits_batch(8)
    gradients = subject.trainer(digits_mlp((32, 16)), RECIPE.replace(precision=precision)).gradients((batch,))
    low = FORMATS[precision.format].dtype
    for name in [n for n in gradients if n.endswith(".weight")]:
        value = gradients[name].astype(np.float32)
        rounded = value.astype(low).astype(np.float32)
        verdict.equal(
            rounded, value, f"every value of {name}'s gradient is a {precision.format} number", "backward-not-low"
        )


@clause("autocast.policy-does-not-leak")
@each_half
def test_other_model_keeps_its_precision(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    batch = digits_batch(8)
    alone = subject.trainer(digits_mlp((16,)), RECIPE)
    expected = [alone.update((batch,)).loss for _ in range(2)]
    other = subject.trainer(digits_mlp((16,)), RECIPE)
    low = subject.trainer(digits_mlp((16,)), RECIPE.replace(precision=precision))
    measured = []
    for _ in range(2):
        low.update((batch,))
        measured.append(other.update((batch,)).loss)
    verdict.equal(measured, expected, "losses of a float32 model next to a mixed one", "policy-leaked")
    verdict.equal(
        other.predict(batch.inputs)["output"].dtype.name, "float32", "format of its predictions", "policy-leaked"
    )


@clause("autocast.policy-does-not-leak")
@each_half
def test_loss_over_3000_items_does_not_overflow(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    count = 3000
    x = np.zeros((count, 8), np.float32)
    batch = Batch(x, {"output": np.full((count, 4), 8.0, np.float32)})
    trainer = subject.trainer(exact_linear(), RECIPE.replace(precision=precision))
    verdict.equal(
        trainer.update((batch,)).loss, 64.0, "mean of 3,000 losses of 64, whose sum is beyond float16", "loss-is-low"
    )


@clause("autocast.bf16-needs-no-scaling")
def test_bfloat16_gradients_do_not_underflow(subject: Subject, verdict: Verdict) -> None:
    losses = {}
    for precision in (FLOAT32, BFLOAT16):
        gradients = tiny_gradients(subject, precision, 1e-7)
        losses[precision.label] = share_of_zeros(gradients)
    verdict.observe("share-of-zeros", losses)
    verdict.holds(losses["O0"] < 1.0, "share of gradient values that are zero in float32", losses["O0"], "< 1")
    verdict.equal(losses["O1-bfloat16"], losses["O0"], "share of gradient values that are zero", "underflow")


def tiny_gradients(subject: Subject, precision: Precision, size: float) -> Array:
    """Return weight gradients of a linear model whose inputs make the gradients as small as `size`² and smaller."""
    rng = np.random.default_rng(11)
    x = np.ldexp(rng.uniform(1.0, 2.0, (4, 8)), np.tile(np.arange(0, -16, -2), (4, 1))) * 2.0**10 * size
    batch = Batch(x.astype(np.float32), {"output": np.ones((4, 4), np.float32)})
    return subject.trainer(exact_linear(), RECIPE.replace(precision=precision)).gradients((batch,))["0.output.weight"]


def share_of_zeros(values: Array) -> float:
    """Return the share of the values that are exactly zero."""
    return float(np.mean(values == 0))


@clause("autocast.underflow-census")
def test_observe_float16_underflow(subject: Subject, verdict: Verdict) -> None:
    census = {p.label: share_of_zeros(tiny_gradients(subject, p, 1e-7)) for p in (FLOAT32, FLOAT16)}
    verdict.observe("share-of-zeros-without-scaling", census)
    verdict.equal(census["O0"], 0.0, "share of zeros in float32")
    verdict.holds(
        census["O1-float16"] > 0, "float16 loses some without scaling: the control", census["O1-float16"], "> 0"
    )
