"""Shows of every fault that a plain run through the contract comes out differently with it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.data import exact_batch, sincos_batch, token_batch, vector_batch
from fixtures.layers import Activation, BatchNorm, Convolution, Dense, Dropout, Flatten, Head, Heads, MaxPool
from fixtures.model import Batch, Model
from fixtures.models import embedded, encoder, exact_linear, scalar, sincos, two_heads
from fixtures.recipe import SGD, Adam, AdamW, DynamicScaling, Precision, Recipe, Recompute, StaticScaling, Steps
from frameworks.contract import Framework, Trainer
from frameworks.reference.framework import ReferenceFramework
from tests.inventions.round_2026_11_22_d import faults_d_1 as one
from tests.inventions.round_2026_11_22_d import faults_d_2 as two
from tests.inventions.round_2026_11_22_d import faults_d_3 as three

Show = Callable[[Framework], Any]
SHOWS: list[tuple[type[ReferenceFramework], Show]] = []
WEIGHT, BIAS = "0.output.weight", "0.output.bias"


def shows(fault: type[ReferenceFramework]) -> Callable[[Show], Show]:
    def noted(show: Show) -> Show:
        SHOWS.append((fault, show))
        return show

    return noted


def single(*layers: Any, units: int = 4, sample: tuple[int, ...] = (8,)) -> Model:
    return Model("shown", (*layers, Heads((Head("output", units),))), sample, (("output", "squared_error"),))


def reloaded(framework: Framework, run: Trainer, model: Model, recipe: Recipe) -> Trainer:
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        later = framework.trainer(model, recipe)
        later.restore(Path(folder))
    return later


def both(weight: float, bias: float) -> dict[str, np.ndarray]:
    return {WEIGHT: np.full((1, 1), weight), BIAS: np.full(1, bias)}


@shows(one.LoadedCountsAreRounded)
def _(framework: Framework) -> Any:
    recipe = Recipe(Adam(), Precision("O2", "bfloat16"))
    run = framework.trainer(scalar(), recipe)
    for _ in range(257):
        run.feed(both(1.0, 1.0))
    return reloaded(framework, run, scalar(), recipe).optimizer_state()


@shows(one.LoadsShareMoments)
def _(framework: Framework) -> Any:
    recipe = Recipe(SGD(0.1, 0.9))
    run = framework.trainer(scalar(), recipe)
    run.feed(both(1.0, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        first, second = framework.trainer(scalar(), recipe), framework.trainer(scalar(), recipe)
        first.restore(Path(folder))
        second.restore(Path(folder))
    first.feed(both(3.0, 3.0))
    return second.optimizer_state()


@shows(one.DecayIsStaleAfterLoad)
def _(framework: Framework) -> Any:
    recipe = Recipe(AdamW(0.1, weight_decay=0.1), schedule=Steps((1,), (1.0, 0.5)))
    run = framework.trainer(scalar(), recipe)
    run.feed(both(1.0, 1.0))
    later = reloaded(framework, run, scalar(), recipe)
    later.feed(both(1.0, 1.0))
    return later.parameters()


@shows(one.RateWaitsForBoundary)
def _(framework: Framework) -> Any:
    recipe = Recipe(SGD(0.5), schedule=Steps((1,), (1.0, 0.5)))
    run = framework.trainer(scalar(), recipe)
    for _ in range(2):
        run.feed(both(1.0, 1.0))
    return reloaded(framework, run, scalar(), recipe).feed(both(1.0, 1.0)).learning_rate


@shows(one.LoadedWindowForgetsLosses)
def _(framework: Framework) -> Any:
    recipe, (a, b) = Recipe(accumulation=2), exact_batch().into(2)
    run = framework.trainer(exact_linear(), recipe)
    run.accumulate(a, 8)
    later = reloaded(framework, run, exact_linear(), recipe)
    later.accumulate(b, 8)
    return later.apply().loss


@shows(one.LoadCleansStatistics)
def _(framework: Framework) -> Any:
    model, recipe, batch = single(BatchNorm()), Recipe(scaling=StaticScaling(1.0)), exact_batch()
    run = framework.trainer(model, recipe)
    run.update((replace(batch, inputs=np.full_like(batch.inputs, np.inf)),))
    return reloaded(framework, run, model, recipe).buffers()


@shows(one.SecondLossDrawsAnew)
def _(framework: Framework) -> Any:
    heads = Heads((Head("a", 2), Head("b", 2)))
    model = Model("shown", (Dense(8), Dropout(0.5), heads), (8,), (("a", "squared_error"), ("b", "squared_error")))
    batch = Batch(exact_batch().inputs, {"a": np.ones((8, 2), np.float32), "b": np.ones((8, 2), np.float32)})
    return framework.trainer(model, Recipe(separate_losses=True, recompute=Recompute(1))).gradients((batch,))


@shows(one.SegmentsAreReplayedOnce)
def _(framework: Framework) -> Any:
    batch = Batch(exact_batch().inputs, {"a": np.ones((8, 2), np.float32), "b": np.ones((8, 2), np.float32)})
    run = framework.trainer(two_heads(), Recipe(separate_losses=True, recompute=Recompute(1)))
    try:
        return run.gradients((batch,))
    except RuntimeError as error:
        return str(error)


@shows(one.EvaluationStaysInReplay)
def _(framework: Framework) -> Any:
    run = framework.trainer(single(Dense(8), Dropout(0.5)), Recipe(recompute=Recompute(1)))
    run.predict(exact_batch().inputs)
    run.update((exact_batch(),))
    return run.parameters()


@shows(one.ReplayedRowsCountOnce)
def _(framework: Framework) -> Any:
    batch = Batch(np.zeros((2, 6), np.int64), {"output": np.array([0, 1])})
    return framework.trainer(embedded(), Recipe(recompute=Recompute(1))).gradients((batch,))


@shows(one.RunsShareOneStream)
def _(framework: Framework) -> Any:
    model = single(Dropout(0.5))
    run = framework.trainer(model, Recipe())
    run.update((exact_batch(),))
    framework.trainer(model, Recipe(seed=1))
    run.update((exact_batch(),))
    return run.parameters()


@shows(one.ScaleIsHandedOn)
def _(framework: Framework) -> Any:
    recipe = Recipe(scaling=DynamicScaling())
    framework.trainer(scalar(), recipe).feed(both(np.inf, 1.0))
    return framework.trainer(scalar(), recipe).scaler_state()


@shows(one.EvaluationWeightsOutliveTheRun)
def _(framework: Framework) -> Any:
    model, inputs = single(Dense(8)), exact_batch().inputs
    framework.trainer(model, Recipe()).predict(inputs)
    return framework.trainer(model, Recipe(seed=1)).predict(inputs)


@shows(two.BatchVarianceBySquares)
def _(framework: Framework) -> Any:
    batch = exact_batch()
    far = replace(batch, inputs=(1000.0 + batch.inputs / 64.0).astype(np.float32))
    run = framework.trainer(single(BatchNorm()), Recipe())
    return run.update((far,)).loss


@shows(two.GeluBreaksFarOut)
def _(framework: Framework) -> Any:
    batch = exact_batch()
    run = framework.trainer(single(Activation("gelu")), Recipe())
    return run.predict(batch.inputs * np.float32(16.0))


@shows(two.HalfTanhPassesOne)
def _(framework: Framework) -> Any:
    model = single(Dense(8), Activation("tanh"))
    run = framework.trainer(model, Recipe(precision=Precision("O1", "float16")))
    return run.predict(exact_batch().inputs * np.float32(16.0))


@shows(two.PaddedKeysTakePart)
def _(framework: Framework) -> Any:
    model = encoder(width=8, heads=2, blocks=1, length=7, embedded=False)
    return framework.trainer(model, Recipe()).predict(vector_batch(2, 7, 8).inputs)


@shows(two.PoolGradientIsNotCleared)
def _(framework: Framework) -> Any:
    model = single(Convolution(2), MaxPool(2), Flatten(), sample=(4, 4, 1))
    batch = Batch(np.random.default_rng(0).random((2, 4, 4, 1), np.float32), {"output": np.ones((2, 4), np.float32)})
    run = framework.trainer(model, Recipe())
    run.gradients((batch,))
    return run.gradients((batch,))


@shows(two.BiasSumsInBfloat16)
def _(framework: Framework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(precision=Precision("O1", "bfloat16")))
    return run.gradients((exact_batch(600),))


@shows(three.SumStandsForElements)
def _(framework: Framework) -> Any:
    recipe = Recipe(precision=Precision("O3", "float16"), scaling=StaticScaling(1.0))
    gradient = {WEIGHT: np.full((8, 4), 4096.0)}
    return framework.trainer(exact_linear(), recipe).feed(gradient).skipped


@shows(three.UnscalesThroughFloat32)
def _(framework: Framework) -> Any:
    run = framework.trainer(sincos(4), Recipe(scaling=StaticScaling(8.0)))
    return run.gradients((sincos_batch(6),))


@shows(three.SingleElementsAreNotChecked)
def _(framework: Framework) -> Any:
    return framework.trainer(scalar(), Recipe(scaling=DynamicScaling(8.0))).feed(both(1.0, np.nan)).skipped


@shows(three.ClippedUpdatesDoNotCount)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(8.0, interval=2), clip=0.5))
    return [run.feed(both(1.0, 1.0)).scale_after for _ in range(2)]


@shows(three.PartialSkipLeavesAverage)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(8.0), optimizers=2, average=0.5))
    run.feed(both(1.0, np.inf))
    return run.optimizer_state()


@shows(three.NonFiniteClearsTheWindow)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(8.0), accumulation=3))
    return run.feed(both(1.0, 1.0), both(np.inf, 1.0), both(1.0, 1.0)).skipped, run.parameters()


@shows(three.MaskedSequencesCountAsOne)
def _(framework: Framework) -> Any:
    model = encoder(width=8, heads=2, blocks=1, length=8, embedded=False)
    batch = vector_batch(3, 8, 8)
    mask = np.ones((3, 8), np.float32)
    mask[1] = 0.0
    return framework.trainer(model, Recipe()).gradients((replace(batch, mask=mask),))


@shows(three.AveragedEvaluationClearsGradients)
def _(framework: Framework) -> Any:
    run, (a, b) = framework.trainer(exact_linear(), Recipe(accumulation=2, average=0.5)), exact_batch().into(2)
    run.accumulate(a, 8)
    run.predict_averaged(a.inputs)
    run.accumulate(b, 8)
    run.apply()
    return run.parameters()


@shows(three.EmptyMicroBatchStartsAnew)
def _(framework: Framework) -> Any:
    model = encoder(width=8, heads=2, blocks=1, length=8)
    full = token_batch(2, 8)
    empty = replace(full, mask=np.zeros((2, 8), np.float32))
    return framework.trainer(model, Recipe(accumulation=3)).gradients((full, empty, full))


@shows(three.StepSizesAreBuffered)
def _(framework: Framework) -> Any:
    framework.trainer(scalar(), Recipe(Adam(0.1))).feed(both(1.0, 1.0))
    run = framework.trainer(scalar(), Recipe(Adam(0.5)))
    run.feed(both(1.0, 1.0))
    return run.parameters()


@shows(three.ZeroRateGivesNan)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(Adam(), schedule=Steps((1,), (0.0, 1.0))))
    run.feed(both(1.0, 0.0))
    return run.parameters()


@shows(three.ScheduleReachesFirstGroup)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(SGD(0.5), groups=2, schedule=Steps((1,), (0.5, 1.0))))
    run.feed(both(1.0, 1.0))
    return run.parameters()


@shows(three.ZeroGradientIsTakenForNone)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(AdamW(0.1, weight_decay=0.1)))
    run.feed(both(0.0, 1.0))
    return run.parameters()


@shows(three.AverageKeepsFirstStatistics)
def _(framework: Framework) -> Any:
    run = framework.trainer(single(BatchNorm()), Recipe(average=0.5))
    run.update((exact_batch(),))
    return run.predict_averaged(exact_batch().inputs)


@shows(three.AverageStaysInThePlace)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(average=0.5))
    for _ in range(2):
        run.feed(both(1.0, 1.0))
    run.predict_averaged(np.ones((2, 1), np.float32))
    return run.parameters()


@shows(three.OnlyUpdatedWeightsAreAveraged)
def _(framework: Framework) -> Any:
    run = framework.trainer(scalar(), Recipe(average=0.5))
    run.feed(both(1.0, 1.0))
    run.feed(both(1.0, 1.0))
    run.feed({WEIGHT: np.ones((1, 1))})
    return run.optimizer_state()


@shows(three.SingleSampleLosesItsAxis)
def _(framework: Framework) -> Any:
    return framework.trainer(exact_linear(), Recipe()).predict(exact_batch(1).inputs)


def bits(value: Any) -> Any:
    """A result in a form that compares bit by bit."""
    if isinstance(value, dict):
        return {name: bits(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [bits(part) for part in value]
    array = np.asarray(value)
    return array.dtype.name, array.shape, array.tobytes()


def main() -> int:
    failed = 0
    for fault, show in SHOWS:
        differs = bits(show(ReferenceFramework("cpu"))) != bits(show(fault("cpu")))
        repeats = bits(show(ReferenceFramework("cpu"))) == bits(show(ReferenceFramework("cpu")))
        failed += not (differs and repeats)
        print(f"{'differs' if differs and repeats else 'SAME'}  {fault.__name__}  {fault.kind}  {fault.clause}")
    print(f"{len(SHOWS)} faults, {failed} without a difference")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
