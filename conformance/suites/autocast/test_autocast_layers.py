"""Mixed precision in whole models: every layer type takes part, and wide operations stay wide."""

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need, of_one_pass
from fixtures.arrays import FORMATS
from fixtures.data import digits_batch, sincos_batch, token_batch
from fixtures.model import Activation, Batch, BatchNorm, Dense, Flatten, Head, Heads, Model
from fixtures.models import digits_convolution, encoder, sincos
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, Precision, Recipe
from frameworks.contract import Capability

each_half = pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16], ids=lambda p: p.format)
each_model = pytest.mark.parametrize("fixture", ["convolution", "encoder"])
RECIPE = Recipe(SGD(2.0**-6))


def make_model_and_batch(fixture: str, dropout: float = 0.0) -> tuple[Model, Batch]:
    """Return a model with products of several layer types, and a batch for it."""
    if fixture == "convolution":
        return digits_convolution(dropout, 4), digits_batch(8, image=True)
    return encoder(width=16, heads=2, blocks=1, dropout=dropout), token_batch(4)


@clause("autocast.layers-honour-policy")
@each_half
@each_model
def test_matmul_of_every_layer_is_low_precision(
    subject: Subject, verdict: Verdict, fixture: str, precision: Precision
) -> None:
    of_one_pass(subject, verdict)
    model, batch = make_model_and_batch(fixture)
    gradients = subject.trainer(model, RECIPE.replace(precision=precision)).gradients((batch,))
    tables = {"0.weight", "1.weight"} if fixture == "encoder" else set()
    products = {n: g.astype(np.float32) for n, g in gradients.items() if n.endswith(".weight") and n not in tables}
    low = FORMATS[precision.format].dtype
    wide = sorted(n for n, g in products.items() if not np.array_equal(g.astype(low).astype(np.float32), g))
    verdict.equal(wide, [], f"weights of products whose gradient is no {precision.format} number", "not-low")


@clause("autocast.layers-honour-policy")
@each_half
@each_model
def test_every_layer_trains(subject: Subject, verdict: Verdict, fixture: str, precision: Precision) -> None:
    model, batch = make_model_and_batch(fixture, dropout=0.25)
    trainer = subject.trainer(model, RECIPE.replace(precision=precision))
    gradients = trainer.gradients((batch,))
    verdict.equal(sorted(gradients), sorted(model.parameter_shapes()), "parameters that have a gradient", "no-gradient")
    verdict.finite(gradients, "gradients of a model with dropout")
    verdict.holds(bool(np.isfinite(trainer.update((batch,)).loss)), "the loss is finite")


@clause("autocast.norm-layers-are-wide")
@each_half
def test_running_statistics_are_float32(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    layers = (BatchNorm(momentum=0.5), Flatten(), Heads((Head("output", 4),)))
    model = Model("normalised", layers, (4, 4, 1), (("output", "squared_error"),))
    values = np.full(16, 2048.0, np.float32)
    values[-1] = 2064.0
    batch = Batch(values.reshape(1, 4, 4, 1), {"output": np.zeros((1, 4), np.float32)})
    trainer = subject.trainer(model, RECIPE.replace(precision=precision))
    trainer.update((batch,))
    means = {n: v for n, v in trainer.buffers().items() if n.endswith("mean")}
    verdict.equal([v.dtype.name for v in means.values()], ["float32"], "format of the running mean", "statistics-low")
    (mean,) = (v.astype(np.float64).item() for v in means.values())
    verdict.equal(mean, 1024.5, "half of the mean 2049 of fifteen 2048 and one 2064", "statistics-low")


@clause("autocast.backward-in-forward-precision")
@each_half
def test_float32_region_has_float32_gradients(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    of_one_pass(subject, verdict)
    layers = (Dense(16, wide=True), Activation("tanh"), Heads((Head("output", 10),)))
    model = Model("with-float32-region", layers, (784,), (("output", "cross_entropy"),))
    gradients = subject.trainer(model, RECIPE.replace(precision=precision)).gradients((digits_batch(8),))
    low, wide = FORMATS[precision.format].dtype, gradients["0.weight"].astype(np.float32)
    narrow = np.array_equal(wide.astype(low).astype(np.float32), wide)
    verdict.holds(not narrow, "gradients of the region have more digits than the scope's format", wide, signature="low")


@clause("autocast.promotes-to-widest")
@each_half
def test_float64_head_stays_float64(subject: Subject, verdict: Verdict, precision: Precision) -> None:
    need(subject, Capability.FLOAT64_HEADS)
    batch = sincos_batch(16)
    trainer = subject.trainer(sincos(8), RECIPE.replace(precision=precision))
    outputs = trainer.predict(batch.inputs)
    heads = {n: v for n, v in trainer.parameters().items() if ".sin." in n or ".cos." in n}
    gradients = {n: g for n, g in trainer.gradients((batch,)).items() if n in heads}
    verdict.equal(sorted(gradients), sorted(heads), "parameters of the heads that have a gradient", "no-gradient")
    for what, arrays in (("output", outputs), ("parameter", heads), ("gradient", gradients)):
        formats = sorted({value.dtype.name for value in arrays.values()})
        verdict.equal(formats, ["float64"], f"formats of every {what} of the heads", "narrowed")
    for name, value in outputs.items():
        narrow = np.array_equal(value.astype(np.float32).astype(np.float64), value)
        verdict.holds(not narrow, f"values of {name} have more digits than float32", value, signature="narrowed")
