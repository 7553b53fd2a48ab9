"""Demonstrations of the faults of accumulation, precision, scaling, averages, recomputation and checkpoints."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fixtures.data import digits_batch, exact_batch, token_batch
from fixtures.model import Batch
from fixtures.models import (
    digits_convolution,
    dropout_probe,
    embedded,
    encoder,
    exact_linear,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import FLOAT16, SGD, Adam, DynamicScaling, Precision, Recipe, Recompute, Steps
from frameworks.reference import ReferenceFramework
from tests.inventions.round_2026_11_25_q import faults_q_1, faults_q_2
from tests.inventions.round_2026_11_25_q.seen import Demonstration, Seen, filled, heads_batch, ones_batch, resumed

_LOW_MODEL = Precision("O2", "bfloat16")
_WARM_UP = Steps((1, 2), (0.5, 0.75, 1.0))


def _groups(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5), groups=2, schedule=_WARM_UP))
    run.update((exact_batch(),))
    return run.parameters()


def _evaluation(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(dropout_probe(), Recipe())
    run.predict(ones_batch().inputs)
    return run.gradients((ones_batch(),))


def _repeated_rows(framework: ReferenceFramework) -> Seen:
    labels = np.arange(64) % 3
    ids = np.repeat(np.arange(2), 32)[:, None] * np.ones((1, 6), np.int64)
    return framework.trainer(embedded(), Recipe(precision=_LOW_MODEL)).gradients((Batch(ids, {"output": labels}),))


def _norm(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(two_heads(), Recipe(SGD(0.5), accumulation=2, clip=0.5))
    update = run.update((heads_batch("a"), heads_batch("b", seed=1)))
    return run.parameters() | {"norm": np.array(update.gradient_norm)}


def _joins(framework: ReferenceFramework) -> Seen:
    first, second = np.ones((2, 2), np.float16), np.full((2, 2), 1e5, np.float32)
    return {op: framework.run_op(op, first, second).value for op in ("concatenate", "stack")}


def _lists(framework: ReferenceFramework) -> Seen:
    logits = np.linspace(-2.0, 2.0, 8, dtype=np.float32)[None]
    with framework.autocast(FLOAT16, low=("softmax",)), framework.autocast(FLOAT16):
        return {"softmax": framework.run_op("softmax", logits).value}


def _statistics(framework: ReferenceFramework) -> Seen:
    batch = digits_batch(4, image=True)
    run = framework.trainer(digits_convolution(dropout=0.0, filters=2), Recipe(precision=FLOAT16))
    run.update((batch,))
    return run.predict(batch.inputs)


def _formats(framework: ReferenceFramework) -> Seen:
    model = sincos(4)
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(initial=16.0)))
    update = run.feed(filled(model, 0.25) | {"0.weight": np.full((1, 4), np.inf)})
    return run.parameters() | {"skipped": np.array(update.skipped)}


def _counters(framework: ReferenceFramework) -> Seen:
    model = two_heads()
    run = framework.trainer(model, Recipe(Adam(0.25)))
    run.feed(filled(model, 0.5, ".b."))
    run.feed(filled(model, 1.0))
    return run.parameters()


def _rate(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(schedule=_WARM_UP))
    return {"rate": np.array(run.update((exact_batch(),)).learning_rate)}


def _growth(framework: ReferenceFramework) -> Seen:
    model = scalar()
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(initial=1.0, interval=300)))
    for _ in range(300):
        run.feed(filled(model, 0.0))
    return run.scaler_state()


def _skip(framework: ReferenceFramework) -> Seen:
    model = scalar()
    run = framework.trainer(model, Recipe(SGD(2.0**-13), _LOW_MODEL, DynamicScaling(initial=16.0)))
    run.feed(filled(model, 1.0))
    run.feed(filled(model, np.inf))
    return run.master_parameters()


def _evaluated_average(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(average=0.5))
    for seed in range(2):
        run.update((exact_batch(seed=seed),))
    run.predict_averaged(exact_batch().inputs)
    return run.predict(exact_batch().inputs)


def _loaded_average(framework: ReferenceFramework) -> Seen:
    model, recipe = exact_linear(), Recipe(average=0.75)
    run = framework.trainer(model, recipe)
    for seed in range(3):
        run.update((exact_batch(seed=seed),))
    other = resumed(framework, run, model, recipe)
    other.update((exact_batch(seed=3),))
    return other.optimizer_state()


def _segment_inputs(framework: ReferenceFramework) -> Seen:
    model = encoder(width=8, heads=2, blocks=1, length=4)
    run = framework.trainer(model, Recipe(precision=FLOAT16, recompute=Recompute(2)))
    return run.gradients((token_batch(4, length=4),))


def _nested_replay(framework: ReferenceFramework) -> Seen:
    model = encoder(width=8, heads=2, blocks=1, length=4, dropout=0.25)
    run = framework.trainer(model, Recipe(recompute=Recompute(2, depth=2)))
    run.update((token_batch(4, length=4),))
    return run.state()


def _schedule(framework: ReferenceFramework) -> Seen:
    model, recipe = exact_linear(), Recipe(schedule=_WARM_UP)
    run = framework.trainer(model, recipe)
    run.update((exact_batch(),))
    return resumed(framework, run, model, recipe).optimizer_state()


def _open_window(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(accumulation=2)
    run, batch = framework.trainer(exact_linear(), recipe), exact_batch()
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.accumulate(batch, 2 * batch.items)
        run.restore(Path(folder))
    return run.accumulator()


def _trace(framework: ReferenceFramework) -> Seen:
    run, batch = framework.trainer(exact_linear(), Recipe(accumulation=2)), exact_batch()
    run.accumulate(batch, 2 * batch.items)
    run.trace(exact_batch(seed=1))
    return run.accumulator()


def _masks(framework: ReferenceFramework) -> Seen:
    framework.trainer(dropout_probe(rate=0.5), Recipe()).gradients((ones_batch(),))
    return framework.trainer(dropout_probe(rate=0.25), Recipe()).gradients((ones_batch(),))


CORE: Mapping[str, Demonstration] = {
    faults_q_1.LaterGroupsStartAtBaseRate.__name__: _groups,
    faults_q_1.EvaluationDrawsFromTheStream.__name__: _evaluation,
    faults_q_1.RepeatedRowsAddUpInTheLowFormat.__name__: _repeated_rows,
    faults_q_1.NormOfWhatTheFirstMicroBatchUsed.__name__: _norm,
    faults_q_1.JoinsTakeTheFirstFormat.__name__: _joins,
    faults_q_1.ListsOfOuterScopesAreInherited.__name__: _lists,
    faults_q_1.EvaluationReadsLowStatistics.__name__: _statistics,
    faults_q_1.LaterFormatClearsTheOverflow.__name__: _formats,
    faults_q_1.LastCounterCorrectsAllMoments.__name__: _counters,
    faults_q_1.ReportsTheNextRate.__name__: _rate,
    faults_q_1.GrowthCounterHasEightBits.__name__: _growth,
    faults_q_1.SkipRefreshesMasters.__name__: _skip,
    faults_q_1.AverageStaysInTheModel.__name__: _evaluated_average,
    faults_q_1.AverageStartsAnewAfterALoad.__name__: _loaded_average,
    faults_q_2.SegmentInputsAreKeptLow.__name__: _segment_inputs,
    faults_q_2.NestedReplayLeavesTheStreamBack.__name__: _nested_replay,
    faults_q_2.LoadCountsTheScheduleTwice.__name__: _schedule,
    faults_q_2.OpenWindowSurvivesALoad.__name__: _open_window,
    faults_q_2.TraceEndsTheWindow.__name__: _trace,
    faults_q_2.MasksAreCachedWithoutTheirRate.__name__: _masks,
}
