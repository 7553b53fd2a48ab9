"""Small runs that show the faults of training itself: scaling, accumulation, masters, recomputation, precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch
from fixtures.layers import Dense, Dropout, Head, Heads
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp, dropout_probe, embedded, exact_linear, exact_stack, scalar, two_heads
from fixtures.recipe import BFLOAT16, FLOAT16, SGD, AdamW, DynamicScaling, Precision, Recipe, Recompute
from frameworks.contract import Framework, Trainer

Run = Callable[[Framework], Any]
WEIGHT, BIAS = "0.output.weight", "0.output.bias"


def filled(model: Model, value: float) -> dict[str, Array]:
    """A gradient of one value for every parameter."""
    return {name: np.full(shape, value) for name, shape in model.parameter_shapes().items()}


def fed(framework: Framework, recipe: Recipe, *windows: tuple[dict[str, Any], ...]) -> Any:
    """The smallest model after updates from given gradients: what they reported, and the whole state."""
    run = framework.trainer(scalar(), recipe)
    return [run.feed(*window) for window in windows], run.state()


def large_finite(framework: Framework) -> Any:
    return fed(framework, Recipe(SGD(2.0**-70), scaling=DynamicScaling(1.0)), (filled(scalar(), 2.0**66),))


def skip_with_dropout(framework: Framework) -> Any:
    model = dropout_probe()
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(2.0**10)))
    batch = Batch(np.ones((2, 64), np.float32), {"output": np.zeros((2, 1), np.float32)})
    run.update((Batch(batch.inputs * np.float32(1e38), batch.targets),))
    return run.random_state(), run.gradients((batch,))


def unused_head(framework: Framework) -> Any:
    run = framework.trainer(two_heads(), Recipe(AdamW(weight_decay=0.5)))
    targets = {"a": np.ones((4, 2), np.float32)}
    run.update((Batch(exact_batch(4).inputs, targets),))
    return run.parameters()


def windows_of_two_lengths(framework: Framework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5)))
    batch = exact_batch(8)
    run.update(batch.part(0, 4).into(2))
    run.update(batch.into(4))
    return run.parameters()


def skipped_momentum(framework: Framework) -> Any:
    recipe = Recipe(SGD(0.5, momentum=0.5), scaling=DynamicScaling(2.0**4))
    return fed(framework, recipe, ({WEIGHT: np.full((1, 1), np.inf), BIAS: np.ones(1)},), (filled(scalar(), 1.0),))


def evaluation_between(framework: Framework) -> Any:
    run = framework.trainer(dropout_probe(), Recipe())
    batch = Batch(np.ones((2, 64), np.float32), {"output": np.zeros((2, 1), np.float32)})
    run.predict(batch.inputs)
    return run.gradients((batch,))


def averages_of_two(framework: Framework) -> Any:
    return fed(framework, Recipe(SGD(0.5), optimizers=2, average=0.5), *[(filled(scalar(), 1.0),)] * 3)


def bfloat16_weights(framework: Framework) -> Any:
    return framework.trainer(digits_mlp((16,)), Recipe(precision=Precision("O2", "bfloat16"))).parameters()


def decayed_table(framework: Framework) -> Any:
    run = framework.trainer(embedded(), Recipe(AdamW(weight_decay=0.5)))
    run.update((Batch(np.zeros((2, 6), np.int64), {"output": np.array([0, 1])}),))
    return run.parameters()


def two_losses(framework: Framework) -> Any:
    heads = Heads((Head("a", 2), Head("b", 2)))
    losses = (("a", "squared_error"), ("b", "squared_error"))
    model = Model("two-heads", (Dense(8), Dropout(0.5), Dense(8), heads), (8,), losses)  # type: ignore[arg-type]
    run = framework.trainer(model, Recipe(recompute=Recompute(1), separate_losses=True))
    targets = {name: np.ones((4, 2), np.float32) for name in "ab"}
    return run.gradients((Batch(exact_batch(4).inputs, targets),))


def evaluated_segments(framework: Framework) -> Any:
    run = framework.trainer(exact_stack(), Recipe(recompute=Recompute(2)))
    run.update((exact_batch(),))
    run.predict(exact_batch().inputs)
    return run.segment_calls()


def one_sample(framework: Framework) -> Any:
    run: Trainer = framework.trainer(digits_mlp((16,)), Recipe(precision=BFLOAT16))
    return run.predict(digits_batch(1).inputs)


def large_scores(framework: Framework) -> Any:
    queries = np.full((1, 2, 16), 100.0, np.float32)
    values = np.linspace(-1.0, 1.0, 32, dtype=np.float32).reshape(1, 2, 16)
    with framework.autocast(FLOAT16):
        return framework.run_op("attention", queries, queries, values)


def equal_scopes(framework: Framework) -> Any:
    before = framework.global_state()
    ones = np.ones((2, 2), np.float32)
    try:
        with framework.autocast(FLOAT16), framework.autocast(FLOAT16):
            framework.run_op("matmul", ones, ones)
        return framework.run_op("matmul", ones, ones)
    finally:
        framework.restore_global_state(before)


RUNS: dict[str, Run] = {
    "OverflowIsReadOffTheNorm": large_finite,
    "SkipRewindsDropout": skip_with_dropout,
    "DecayReachesUnusedParameters": unused_head,
    "ItemsOfTheWindowAreBakedIn": windows_of_two_lengths,
    "SkippedGradientsReachMomentum": skipped_momentum,
    "EvaluationEndsDropout": evaluation_between,
    "AverageFollowsTheFirstOptimizer": averages_of_two,
    "LowWeightsAreTruncated": bfloat16_weights,
    "DecayOfUsedRowsOnly": decayed_table,
    "SecondBackwardDrawsAnew": two_losses,
    "EvaluationRunsThroughSegments": evaluated_segments,
    "OneRowStaysWide": one_sample,
    "ScoresOverflowBeforeTheyAreScaled": large_scores,
    "EqualScopesAreOneObject": equal_scopes,
}
