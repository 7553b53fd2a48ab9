"""A failure is traced to the layer where it begins, and to none where every layer is right."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.checks.evidence import Verdict, Violation
from conformance.checks.failing_layer import (
    WITHIN,
    LayerBounds,
    label,
    layer_bounds,
    naming_the_layer,
    record_layers,
    tensors,
)
from conformance.checks.outcome import conclude
from conformance.checks.subject import Subject
from conformance.oracle.bound import Bound
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Dense, Head, Heads, LayerNorm, Model, Residual
from fixtures.models import digits_convolution, digits_mlp, encoder, exact_linear, sincos
from fixtures.recipe import BFLOAT16, FLOAT16, FLOAT32, SGD, DynamicScaling, Precision, Recipe, Recompute
from frameworks.contract import Capability, LayerTrace, Unsupported
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from results.record.arrays import fingerprint
from results.record.reading import load
from tests.support.recorded import by_name
from tests.support.suite_runs import judge
from tools.faults.reference import composition as faults

FIXTURES: dict[str, tuple[Callable[[], Model], Callable[[], Batch]]] = {
    "exact-linear": (exact_linear, lambda: exact_batch(8)),
    "digits-small": (lambda: digits_mlp((32,), "tanh"), lambda: digits_batch(8)),
    "digits-convolution": (lambda: digits_convolution(0.0, 4), lambda: digits_batch(4, image=True)),
    "encoder": (lambda: encoder(blocks=1), lambda: token_batch(4)),
    "sincos": (lambda: sincos(20), lambda: sincos_batch(16)),
}
RECIPE = Recipe(SGD(0.1))
SCALED = Recipe(SGD(0.1), FLOAT16, DynamicScaling(initial=2.0**8))


def subject(made: Any = ReferenceFramework, seed: int = 0) -> Subject:
    return Subject(made("cpu"), seed)


def bounds_of(model: Model, recipe: Recipe, batch: Batch) -> LayerBounds:
    return layer_bounds(ReferenceFramework("cpu").conventions(), model, recipe, batch)


def trace_of(model: Model, recipe: Recipe, batch: Batch, made: Any = ReferenceFramework) -> LayerTrace:
    trace: LayerTrace = made("cpu").trainer(model, recipe).trace(batch)
    return trace


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("precision", [FLOAT32, FLOAT16, BFLOAT16], ids=lambda p: p.label)
@pytest.mark.parametrize("fixture", FIXTURES)
def test_rounding_names_no_layer(fixture: str, precision: Precision, seed: int) -> None:
    make, given = FIXTURES[fixture]
    model, batch, recipe = make(), given(), Recipe(SGD(0.1), precision, seed=seed)
    assert bounds_of(model, recipe, batch).first_beyond(trace_of(model, recipe, batch)) is None


@pytest.mark.parametrize(
    ("made", "fixture", "where"),
    [
        (faults.LayerNormWithAnotherEpsilon, "encoder", "2.body.0 (LayerNorm), output"),
        (faults.AttentionScaledByAnotherWidth, "encoder", "2.body.1 (SelfAttention), output"),
        (faults.FilterGradientHasItsSidesExchanged, "digits-convolution", "4 (Convolution), gradient of weight"),
    ],
)
def test_a_layer_that_is_slightly_wrong_is_named(made: Any, fixture: str, where: str) -> None:
    make, given = FIXTURES[fixture]
    model, batch = make(), given()
    beyond = bounds_of(model, RECIPE, batch).first_beyond(trace_of(model, RECIPE, batch, made))
    assert beyond is not None
    assert beyond.label == where
    assert beyond.measured > beyond.bound
    assert str(beyond).startswith(f"{where}: relative distance ")


def test_a_gradient_is_blamed_on_the_layer_that_the_output_enters() -> None:
    model = encoder(blocks=1)
    assert label(model, "gradient/0") == "1 (Positions), gradient of its input"
    assert label(model, "gradient/1") == "2.body.0 (LayerNorm), gradient of its input"
    assert label(model, "gradient/2.body.1") == "2 (Residual), gradient of its input"
    assert label(model, "gradient/4") == "5 (Heads), gradient of its input"
    assert label(model, "gradient/5.output") == "loss, gradient of its input from 5.output (Heads)"
    assert label(model, "parameter/2.body.1.query.weight") == "2.body.1 (SelfAttention), gradient of query.weight"
    assert label(model, "output/5.output") == "5.output (Heads), output"


def test_tensors_are_in_the_order_in_which_a_pass_computes_them() -> None:
    model = Model("m", (Dense(4), Residual((LayerNorm(),)), Heads((Head("a", 2),))), (4,), (("a", "squared_error"),))
    batch = Batch(np.ones((2, 4), np.float32), {"a": np.zeros((2, 2), np.float32)})
    assert list(tensors(model, trace_of(model, RECIPE, batch))) == [
        *("output/0", "output/1.body.0", "output/1", "output/2.a"),
        *("gradient/2.a", "parameter/2.a.weight", "parameter/2.a.bias"),
        *("gradient/1", "gradient/1.body.0", "parameter/1.body.0.scale", "parameter/1.body.0.shift"),
        *("gradient/0", "parameter/0.weight", "parameter/0.bias"),
    ]


@pytest.mark.parametrize("spoilt", ["missing", "nan", "shape", "exchanged"])
def test_a_gradient_that_is_missing_or_no_number_or_another_ones_is_named(spoilt: str) -> None:
    model, batch = digits_mlp((8, 8), "tanh"), digits_batch(4)
    trace = trace_of(model, RECIPE, batch)
    parameters = dict(trace.parameters)
    value = parameters.pop("2.weight")
    replaced = {"nan": value * np.nan, "shape": value[:1], "exchanged": value.T}
    parameters |= {"2.weight": replaced[spoilt]} if spoilt in replaced else {}
    beyond = bounds_of(model, RECIPE, batch).first_beyond(replace(trace, parameters=parameters))
    assert beyond is not None
    assert (beyond.tensor, beyond.label) == ("parameter/2.weight", "2 (Dense), gradient of weight")
    messages = {"missing": "missing", "shape": "got shape [1, 8], want [8, 8]"}
    assert str(beyond) == f"{beyond.label}: " + messages.get(
        spoilt, f"relative distance got {beyond.measured:.3g}, want at most {beyond.bound:.3g}"
    )


def test_a_parameter_that_is_a_little_too_long_is_named_where_its_distance_does_not_show_it() -> None:
    model, batch, recipe = digits_mlp((32,), "tanh"), digits_batch(32), Recipe(SGD(0.1), BFLOAT16)
    trace, bounds = trace_of(model, recipe, batch), bounds_of(model, recipe, batch)
    name = "parameter/0.weight"
    factor = 1.0 + (bounds.gains[name] + bounds.distances[name]) / 2
    longer = bounds.exact[name] * factor
    beyond = bounds.first_beyond(replace(trace, parameters=trace.parameters | {"0.weight": longer}))
    assert beyond is not None
    assert beyond.what == "relative length along the exact one"
    assert beyond.label == "0 (Dense), gradient of weight"


def test_what_is_zero_or_little_but_rounding_is_not_judged() -> None:
    model, batch = encoder(blocks=1), token_batch(4)
    bounds = bounds_of(model, RECIPE, batch)
    assert [name for name, bound in bounds.distances.items() if bound == np.inf] == ["parameter/2.body.1.key.bias"]


@pytest.mark.parametrize("recompute", [None, Recompute(1), Recompute(1, depth=2)], ids=["plain", "once", "nested"])
@pytest.mark.parametrize("recipe", [RECIPE, SCALED], ids=["O0", "O1-float16"])
@pytest.mark.parametrize("fixture", ["digits-convolution", "encoder", "sincos"])
def test_the_reference_shows_the_pass_of_its_gradients(
    fixture: str, recipe: Recipe, recompute: Recompute | None
) -> None:
    make, given = FIXTURES[fixture]
    model, batch, recipe = make(), given(), recipe.replace(recompute=recompute)
    trained, traced = (ReferenceFramework("cpu").trainer(model, recipe) for _ in range(2))
    gradients, trace = trained.gradients((batch,)), traced.trace(batch)
    assert list(trace.outputs) == list(trace.gradients) == list(model.output_shapes())
    assert {name: value.tobytes() for name, value in gradients.items()} == {
        name: value.tobytes() for name, value in trace.parameters.items()
    }
    left, right = trained.state(), traced.state()
    assert all(left[name].tobytes() == right[name].tobytes() for name in left.keys() | right.keys())


def test_gradients_of_layers_are_those_of_the_loss() -> None:
    model, batch = digits_mlp((8,), "tanh"), digits_batch(4)
    for recipe in (RECIPE, SCALED):
        trace = trace_of(model, recipe, batch)
        assert trace.gradients["2.output"].dtype == np.float32
        from_output = trace.gradients["2.output"].astype(np.float64).sum(axis=0)
        np.testing.assert_allclose(trace.parameters["2.output.bias"], from_output, rtol=4e-3, atol=1e-5)


def failing(made: Any, model: Model, batch: Batch, recipe: Recipe = RECIPE) -> str:
    judged = subject(made)
    with pytest.raises(Violation) as caught, naming_the_layer(judged, model, recipe, batch):
        Verdict().within(1.0, Bound(0.5, {}), "distance", "beyond")
    judgement = conclude(judged.framework, caught.value, ())
    assert judgement.signature == "beyond"
    return judgement.message


def test_message_of_a_violation_names_the_layer_or_says_that_all_are_right() -> None:
    text = failing(faults.AttentionScaledByAnotherWidth, encoder(blocks=1), token_batch(4))
    assert text.startswith("distance: got 1.0")
    assert "first layer further from the reference than its rounding explains: 2.body.1 (SelfAttention), out" in text
    assert failing(ReferenceFramework, exact_linear(), exact_batch(8)).endswith(WITHIN)


class Blind(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        raise Unsupported(Capability.TRACE, f"nothing to see of {len(batch)} samples")


class BlindToSegments(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        if self.recipe.recompute is not None:
            raise Unsupported(Capability.TRACE, "a segment shows nothing")
        return super().trace(batch)


class Breaking(ReferenceTrainer):
    def trace(self, batch: Batch) -> LayerTrace:
        raise RuntimeError(f"no trace of {len(batch)} samples")


def framework_of(trainer: type[ReferenceTrainer]) -> type[ReferenceFramework]:
    return type("Other", (ReferenceFramework,), {"trainer_class": trainer})


@pytest.mark.parametrize("trainer", [Blind, Breaking])
def test_a_violation_stays_one_where_layers_cannot_be_shown(trainer: type[ReferenceTrainer]) -> None:
    said = failing(framework_of(trainer), exact_linear(), exact_batch(8))
    assert said == "distance: got 1.0, want at most 0.5"


def test_message_of_a_run_whose_segments_are_not_shown_is_that_without_them() -> None:
    model, batch = digits_mlp((8,), "tanh"), digits_batch(4)
    assert failing(framework_of(BlindToSegments), model, batch, RECIPE.replace(recompute=Recompute(1))).endswith(WITHIN)


def test_a_record_takes_every_tensor_of_a_pass_where_it_is_shown() -> None:
    model, batch = digits_mlp((8,), "tanh"), digits_batch(4)
    traced, blind = Verdict(), Verdict()
    record_layers(subject(seed=1), traced, model, RECIPE, batch)
    record_layers(subject(framework_of(Blind)), blind, model, RECIPE, batch)
    expected = tensors(model, trace_of(model, RECIPE.replace(seed=1), batch))
    assert traced.fingerprints == {"layers": [fingerprint(name, array) for name, array in expected.items()]}
    assert blind.fingerprints == {}


def test_a_record_of_parity_has_tensors_bounds_and_numbers(tmp_path: Path) -> None:
    suite, record = "conformance/suites/autocast/test_autocast_parity.py", tmp_path / "run.json"
    ended = judge("-k", "exact-linear and (test_float32_sgd_parity or momentum)", f"--record={record}", suite)
    assert ended.status == 0, ended.lines
    result = load(record)
    sgd, momentum = "test_float32_sgd_parity[exact-linear]", "test_float32_optimizer_parity[exact-linear-momentum]"
    arrays = {name: each.arrays for name, each in by_name(result.tensors).items()}
    assert arrays.keys() == {f"first/{sgd}", f"layers/{sgd}", f"first/{momentum}"}
    first = trace_of(exact_linear(), RECIPE, exact_batch(8)).parameters
    expected = tuple(fingerprint(f"parameter/{name}", value) for name, value in first.items())
    assert arrays[f"first/{sgd}"] == expected
    assert [each.name for each in arrays[f"layers/{sgd}"]] == [
        *("output/0.output", "gradient/0.output", "parameter/0.output.weight", "parameter/0.output.bias")
    ]
    trace = by_name(result.traces)[f"loss/{sgd}"].curves
    assert trace.keys() == {"loss", "exact", "spread", "bound"}
    assert trace["bound"] == tuple(4.0 * spread for spread in trace["spread"])
    assert all(isinstance(check.measured, float) for verdict in result.verdicts for check in verdict.checks)
