"""The reference against finite differences, closed forms, its own float64 results, and sums by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch, wide_batch
from fixtures.model import Batch, Model
from fixtures.models import (
    blocks,
    digits_convolution,
    digits_mlp,
    dropout_probe,
    encoder,
    exact_linear,
    exact_stack,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Optimizer,
    Precision,
    Recipe,
    Recompute,
    StaticScaling,
)
from frameworks.contract import Conventions, ScalerRule
from frameworks.operations import CATALOGUE
from frameworks.reference import ReferenceFramework
from frameworks.reference.core.calls import CARRIERS, TENSORS
from frameworks.reference.core.rounding import Exact
from frameworks.reference.training.trainer import ReferenceTrainer

ROWS, LOW = 16, (FLOAT16, BFLOAT16)
FILTERS = 4
# Values of a sample after the first convolution, after the pooling and after the second convolution.
LARGE, POOLED, SECOND = 28 * 28 * FILTERS, 14 * 14 * FILTERS, 7 * 7 * 2 * FILTERS
# Bytes: one for each pooled value, those of the targets, and of mean and variance of each channel.
CONVOLUTION = digits_convolution(0.0, FILTERS), digits_batch(ROWS, image=True), ROWS * (POOLED + 40) + 24 * FILTERS
WIDTH, HEADS, LENGTH = 16, 2, 16
VALUES, PROBABILITIES = LENGTH * WIDTH, HEADS * LENGTH * LENGTH
# Bytes of the statistics of three layer norms, and of the probabilities.
ENCODER = encoder(width=WIDTH, heads=HEADS, blocks=1, length=LENGTH), token_batch(ROWS, LENGTH), ROWS * LENGTH * 40


def make_trainer(model: Model, recipe: Recipe, **choices: object) -> ReferenceTrainer:
    return ReferenceFramework(**choices).trainer(model, recipe)


def two_heads_batch() -> Batch:
    x = exact_batch(outputs=2)
    return Batch(x.inputs, {"a": x.targets["output"], "b": -x.targets["output"]})


SMALL: dict[str, Callable[[], tuple[Model, Batch]]] = {
    "exact-linear": lambda: (exact_linear(), exact_batch()),
    "exact-stack": lambda: (exact_stack(), exact_batch()),
    "scalar": lambda: (scalar(), exact_batch(4, 1, 1)),
    "dropout-probe": lambda: (dropout_probe(), exact_batch(4, 64, 1)),
    "two-heads": lambda: (two_heads(), two_heads_batch()),
    "sincos": lambda: (sincos(6), sincos_batch(5)),
    "digits-mlp": lambda: (digits_mlp((12, 8)), digits_batch(4)),
    "digits-convolution": lambda: (digits_convolution(0.25, 2), digits_batch(3, image=True)),
    "encoder": lambda: (encoder(width=8, heads=2, blocks=1, dropout=0.25), token_batch(2)),
}


@pytest.mark.parametrize(
    ("fixture", "recompute"),
    [
        pytest.param(fixture, recompute, id=f"{name}-{fixture}")
        for name, recompute in (("plain", None), ("once", Recompute(1)), ("nested", Recompute(1, depth=2)))
        for fixture in SMALL
        if recompute is None or len(SMALL[fixture]()[0].layers) > 1
    ],
)
def test_gradients_are_finite_differences(fixture: str, recompute: Recompute | None) -> None:
    model, batch = SMALL[fixture]()
    recipe = Recipe(SGD(0.0), recompute=recompute, seed=1)
    weights = {name: value.astype(np.float64) for name, value in model.weights(1).items()}
    rng = np.random.default_rng(2)
    weights = {name: value + 0.05 * rng.standard_normal(value.shape) for name, value in weights.items()}
    framework = ReferenceFramework(rounding=Exact())
    gradients = framework.trainer(model, recipe, weights).gradients((batch,))
    assert gradients.keys() == weights.keys()
    direction = {name: rng.standard_normal(value.shape) for name, value in weights.items()}
    expected = sum(float(np.vdot(gradients[name], direction[name])) for name in weights)
    step = 1e-6

    def loss(sign: float) -> float:
        shifted = {name: value + sign * step * direction[name] for name, value in weights.items()}
        return framework.trainer(model, recipe, shifted).update((batch,)).loss

    measured = (loss(1.0) - loss(-1.0)) / (2 * step)
    assert measured == pytest.approx(expected, rel=1e-5, abs=1e-6)


class TestPrecision:
    @pytest.mark.parametrize("level", ["O1", "O2", "O3"])
    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_update_at_a_level_has_its_formats(self, level: str, name: str) -> None:
        precision = Precision(level, name)
        run = make_trainer(digits_convolution(0.0, 2), Recipe(Adam(), precision))
        run.update((digits_batch(4, image=True),))
        formats = {n: v.dtype.name for n, v in run.parameters().items()}
        assert formats["0.weight"] == ("float32" if level == "O1" else name)
        assert formats["1.scale"] == (name if level == "O3" else "float32")
        assert run.optimizer_state()["second_moment/0.weight"].dtype.name == (name if level == "O3" else "float32")
        assert {v.dtype.name for v in run.buffers().values()} == {"float32"}
        rounded = {n: v.astype(run.parameters()[n].dtype) for n, v in run.master_parameters().items()}
        np.testing.assert_equal(rounded, run.parameters())

    def test_update_with_exact_rounding_ignores_the_precision(self) -> None:
        batch = digits_batch(4)
        runs = [
            make_trainer(digits_mlp((8,)), Recipe(Adam(), p, DynamicScaling(2.0**4)), rounding=Exact())
            for p in (FLOAT32, FLOAT16, Precision("O3", "bfloat16"))
        ]
        losses = [[run.update((batch,)).loss for _ in range(3)] for run in runs]
        assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-12)

    def test_operations_are_those_of_the_catalogue(self) -> None:
        assert {*CARRIERS, *TENSORS} == set(CATALOGUE)

    @pytest.mark.parametrize("op", CATALOGUE)
    def test_run_op_is_the_float64_result_rounded(self, op: str) -> None:
        operands = CATALOGUE[op]()
        plain = ReferenceFramework(rounding=Exact()).run_op(op, *operands)
        result = ReferenceFramework().run_op(op, *operands)
        assert result.dtype == plain.dtype == result.value.dtype.name or plain.value.dtype == np.float64
        np.testing.assert_allclose(result.value, plain.value.astype(result.value.dtype), rtol=1e-6, atol=1e-7)
        with ReferenceFramework().autocast(BFLOAT16):
            low = ReferenceFramework().run_op(op, *operands)
        np.testing.assert_allclose(low.value.astype(np.float64), plain.value.astype(np.float64), rtol=0.05, atol=0.05)


class TestScaler:
    @pytest.mark.parametrize("latched", [False, True])
    def test_apply_of_nan_after_unscaling_follows_the_rule(self, latched: bool) -> None:
        rule = ScalerRule(minimum=2.0**-126, maximum=2.0**127, latched=latched)
        recipe = Recipe(SGD(0.5), scaling=DynamicScaling(2.0**10))
        run = make_trainer(scalar(), recipe, conventions=Conventions(scaler=rule))
        update = run.apply_gradients({"0.output.bias": np.ones(1)}, inject={"0.output.bias": np.array([math.nan])})
        assert update.skipped == (not latched)

    def test_scaling_with_wrong_settings_is_refused(self) -> None:
        refused = DynamicScaling(0.0), DynamicScaling(2.0**200), DynamicScaling(interval=0), StaticScaling(math.inf)
        for scaling in refused:
            with pytest.raises(ValueError, match=r"scale|needed"):
                make_trainer(scalar(), Recipe(scaling=scaling))


class TestConventions:
    def run_updates(self, optimizer: Optimizer, gradients: list[float], **conventions: object) -> float:
        run = make_trainer(scalar(0.0), Recipe(optimizer), conventions=Conventions(**conventions), rounding=Exact())
        for g in gradients:
            run.apply_gradients({"0.output.bias": np.array([g])})
        return float(run.parameters()["0.output.bias"][0])

    def test_adam_epsilon_follows_the_convention(self) -> None:
        adam = Adam(0.1, epsilon=0.5)
        first, second, t = 0.1 * 2.0, 0.001 * 4.0, 1
        outside = first / (1 - 0.9**t) / (math.sqrt(second / (1 - 0.999**t)) + 0.5)
        inside = math.sqrt(1 - 0.999**t) / (1 - 0.9**t) * first / (math.sqrt(second) + 0.5)
        assert self.run_updates(adam, [2.0], adam_epsilon="outside") == pytest.approx(-0.1 * outside, rel=1e-12)
        assert self.run_updates(adam, [2.0], adam_epsilon="inside") == pytest.approx(-0.1 * inside, rel=1e-12)

    def test_adamw_decay_is_decoupled(self) -> None:
        run = make_trainer(scalar(1.0), Recipe(AdamW(0.5, weight_decay=0.25)), rounding=Exact())
        run.apply_gradients({"0.output.weight": np.zeros((1, 1))})
        assert run.parameters()["0.output.weight"][0, 0] == 1.0 - 0.5 * 0.25

    @pytest.mark.parametrize("rule", ["drop-window", "drop-micro-batch"])
    def test_apply_of_a_nonfinite_micro_batch_follows_the_rule(self, rule: str) -> None:
        recipe = Recipe(SGD(0.5), accumulation=2, scaling=DynamicScaling(2.0**10))
        conventions = Conventions(nonfinite_micro_batch=rule)
        run = make_trainer(scalar(), recipe, conventions=conventions)
        update = run.apply_gradients({"0.output.bias": np.array([math.inf])}, {"0.output.bias": np.array([2.0])})
        assert update.skipped == (rule == "drop-window")
        assert update.scale_after == 2.0**9
        assert run.parameters()["0.output.bias"][0] == (0.0 if rule == "drop-window" else -0.5)

    @pytest.mark.parametrize(
        ("rule", "applied", "micro_batches"), [("flush", True, 0), ("carry", False, 1), ("drop", False, 0)]
    )
    def test_apply_of_an_incomplete_window_follows_the_rule(self, rule: str, applied: bool, micro_batches: int) -> None:
        run = make_trainer(exact_linear(), Recipe(SGD(0.5), accumulation=2), conventions=Conventions(remainder=rule))
        run.accumulate(exact_batch(4), 8)
        assert run.apply().skipped is not applied
        assert run.window.micro_batches == micro_batches


@pytest.mark.parametrize(("precision", "size"), [(FLOAT32, 4), (FLOAT16, 2), (BFLOAT16, 2)])
@pytest.mark.parametrize("segments", [0, 1, 2, 4, 8])
def test_saved_bytes_of_blocks_are_those_by_hand(precision: Precision, size: int, segments: int) -> None:
    count, width = 8, 32
    # The inputs of all dense layers but the first, and of all GELUs; with segments, of all segments but the first.
    inner = segments - 1 if segments else (count - 1) + count
    recipe = Recipe(precision=precision, recompute=Recompute(segments) if segments else None)
    saved = ReferenceFramework().trainer(blocks(count, width), recipe).saved_bytes(wide_batch(ROWS, width))
    assert saved == (inner + 1) * ROWS * width * size + ROWS * 10 * 4


@pytest.mark.parametrize(
    ("fixture", "precision", "wide", "low"),
    [
        # Batch norm's inputs and ReLU's results, the input of the second convolution and of the head.
        (CONVOLUTION, FLOAT32, 2 * LARGE + 2 * SECOND + POOLED + 32, 0),
        # Batch norm computes in float32, which ReLU takes; matmuls take casts.
        *((CONVOLUTION, precision, 2 * LARGE + 2 * SECOND, POOLED + SECOND + 32) for precision in LOW),
        # Residuals; input, queries, keys, values and context; three activations, two of them twice as wide; the head.
        (ENCODER, FLOAT32, (3 + 5 + 5 + 1) * VALUES + PROBABILITIES, 0),
        # Layer norms take the residuals in float32, and each of three projections saves its own cast of the input.
        *((ENCODER, precision, 3 * VALUES, (7 + 5 + 1) * VALUES + PROBABILITIES) for precision in LOW),
    ],
)
def test_saved_bytes_of_a_convolution_and_an_encoder_are_those_by_hand(
    fixture: tuple[Model, Batch, int], precision: Precision, wide: int, low: int
) -> None:
    model, batch, others = fixture
    saved = ReferenceFramework().trainer(model, Recipe(precision=precision)).saved_bytes(batch)
    assert saved == ROWS * (4 * wide + 2 * low) + others
