"""An adapter's layer traces, which locate failures: a trace must be a real training pass."""

from collections.abc import Callable

import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.checks.failing_layer import layer_bounds
from conformance.techniques import recompute
from fixtures.data import digits_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import digits_convolution, digits_mlp, encoder, sincos
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    MASTERED,
    PURE_LOW,
    SGD,
    DynamicScaling,
    Precision,
    Recipe,
    Recompute,
)
from frameworks.contract import Capability, LayerTrace

FIXTURES: dict[str, tuple[Callable[[], Model], Callable[[], Batch]]] = {
    "mlp": (lambda: digits_mlp((32,), "tanh"), lambda: digits_batch(16)),
    "square": (lambda: digits_mlp((32,), "tanh"), lambda: digits_batch(32)),
    "convolution": (lambda: digits_convolution(0.0, 4), lambda: digits_batch(8, image=True)),
    "encoder": (lambda: encoder(blocks=1), lambda: token_batch(8)),
    "sincos": (sincos, lambda: sincos_batch(64)),
}
"""Model and batch by name. In "square", samples and units are equal in number: a sum over the wrong axis fits."""
CASES = [(fixture, precision) for fixture in FIXTURES for precision in (FLOAT32, FLOAT16, BFLOAT16)]
CASES += [(fixture, precision) for fixture in ("square", "encoder") for precision in (*MASTERED, *PURE_LOW)]
FORWARD_CASES = [("mlp", FLOAT32, 0), *(("encoder", precision, 0) for precision in (FLOAT32, FLOAT16, BFLOAT16))]
FORWARD_CASES += [("sincos", BFLOAT16, 0), ("encoder", BFLOAT16, 2)]


@clause("composition.trace-is-the-pass")
@pytest.mark.parametrize(("fixture", "precision"), CASES, ids=lambda value: getattr(value, "label", value))
def test_trace_matches_training_pass(subject: Subject, verdict: Verdict, fixture: str, precision: Precision) -> None:
    need(subject, Capability.TRACE, Capability.of(precision))
    make, make_batch = FIXTURES[fixture]
    model, batch = make(), make_batch()
    scaling = DynamicScaling(initial=2.0**8) if precision.format == "float16" else None
    recipe = Recipe(SGD(2.0**-6), precision, scaling)
    trained, traced = subject.trainer(model, recipe), subject.trainer(model, recipe)
    gradients, trace = trained.gradients((batch,)), traced.trace(batch)
    shapes = {path: [len(batch), *shape] for path, shape in model.output_shapes().items()}
    for what, arrays in (("outputs", trace.outputs), ("gradients", trace.gradients)):
        verdict.equal(list(arrays), list(shapes), f"layers whose {what} are shown, in order", "layers-differ")
        verdict.equal({p: [*a.shape] for p, a in arrays.items()}, shapes, f"shapes of the {what}", "shapes-differ")
    recompute.same_gradients(
        subject, verdict, trace.parameters, gradients, (model, recipe, batch), what="gradients, shown or not"
    )
    moved = ("buffer/",) if subject.conventions.compiled else ()
    verdict.same_state(
        subject.state(traced),
        subject.state(trained),
        "state after a pass that is shown",
        "looking-disturbs",
        ignoring=moved,
    )
    bounds = layer_bounds(subject.conventions, model, subject.complete_recipe(recipe), batch)
    beyond = bounds.first_beyond(trace)
    verdict.holds(beyond is None, "first tensor that rounding does not explain", beyond, "none", "beyond-rounding")


@clause("composition.predicts-as-it-trains")
@pytest.mark.parametrize(
    ("fixture", "precision", "segments"), FORWARD_CASES, ids=lambda value: getattr(value, "label", value)
)
def test_training_forward_equals_prediction(
    subject: Subject, verdict: Verdict, fixture: str, precision: Precision, segments: int
) -> None:
    need(subject, Capability.TRACE, Capability.of(precision), *([Capability.RECOMPUTE] if segments else []))
    make, make_batch = FIXTURES[fixture]
    model, batch = make(), make_batch()
    scaling = DynamicScaling(initial=2.0**8) if precision.format == "float16" else None
    recipe = Recipe(SGD(2.0**-6), precision, scaling, recompute=Recompute(segments) if segments else None)
    trainer = subject.trainer(model, recipe)
    trace, predicted = trainer.trace(batch), trainer.predict(batch.inputs)
    heads = {path: path.rpartition(".")[2] for path in trace.outputs if path.rpartition(".")[2] in predicted}
    verdict.equal(sorted(heads.values()), sorted(predicted), "heads of the traced pass", "heads-differ")
    if not subject.conventions.compiled:
        for path, head in heads.items():
            verdict.equal(predicted[head], trace.outputs[path], f"output of {head}", "predicts-otherwise")
        return
    outputs = trace.outputs | {path: predicted[head] for path, head in heads.items()}
    bounds = layer_bounds(subject.conventions, model, subject.complete_recipe(recipe), batch)
    beyond = bounds.first_beyond(LayerTrace(outputs, trace.gradients, trace.parameters))
    verdict.holds(
        beyond is None, "first predicted tensor that rounding does not explain", beyond, "none", "predicts-otherwise"
    )
