# ruff: noqa: N802 - a run is named after the fault that it shows

"""Runs that show the faults of accumulation, recomputation, averages, optimizers and precision."""

from __future__ import annotations

import numpy as np

from fixtures.data import sincos_batch, token_batch, vector_batch
from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    MaxPool,
)
from fixtures.model import Batch
from fixtures.models import embedded, encoder, exact_linear, scalar, sincos
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    Adam,
    DynamicScaling,
    Precision,
    Recipe,
    Recompute,
)
from tests.inventions.round_2026_11_22_c.shows_c import BATCH, STEPS, chain, data, ones, shows, trained


@shows
def EmptyMicroBatchEmpties(f):
    full = token_batch(4)
    first, second = full.into(2)
    empty = Batch(second.inputs, second.targets, np.zeros_like(second.mask))
    run = f.trainer(encoder(8, 2, 1), Recipe(accumulation=2))
    run.update((first, empty))
    return run.state()


@shows
def OneElementNarrow(f):
    run = f.trainer(sincos(4), Recipe(accumulation=2))
    run.update(sincos_batch(8).into(2))
    return run.state()


@shows
def TraceJoinsWindow(f):
    run = f.trainer(exact_linear(), Recipe(accumulation=2))
    first, second = BATCH.into(2)
    run.accumulate(first, 8)
    run.trace(first)
    run.accumulate(second, 8)
    run.apply()
    return run.state()


@shows
def FlushKeepsSchedule(f):
    run = f.trainer(exact_linear(), Recipe(accumulation=4, schedule=STEPS))
    run.update(BATCH.into(2))
    return run.update(BATCH.into(4)).learning_rate


@shows
def LateGradientForgotten(f):
    run = f.trainer(scalar(), Recipe(accumulation=2))
    whole = ones(scalar())
    for _ in range(2):
        run.feed({"0.output.bias": whole["0.output.bias"]}, whole)
    return run.state()


@shows
def StreamOfTheWindow(f):
    run = f.trainer(chain(Dense(8), Dropout(0.5), Dense(8)), Recipe(accumulation=2, recompute=Recompute(1)))
    run.update(data(8).into(2))
    return run.state()


@shows
def SegmentsSaturate(f):
    model = chain(Dense(4))
    weights = {n: w * (2.0**12 if n == "1.output.weight" else 1.0) for n, w in model.weights(0).items()}
    weights["0.weight"] = weights["0.weight"] * np.float32(2.0**-12)
    recipe = Recipe(precision=FLOAT16, scaling=DynamicScaling(2.0**11), recompute=Recompute(1))
    run = f.trainer(model, recipe, {n: w.astype(np.float32) for n, w in weights.items()})
    return run.update((data(),)), run.state()


@shows
def LastSegmentPlain(f):
    run = f.trainer(chain(Dense(8), Dense(8)), Recipe(recompute=Recompute(2)))
    run.update((data(),))
    return run.segment_calls(), run.saved_bytes(data())


@shows
def SecondSegmentUntrained(f):
    run = f.trainer(chain(Activation("tanh"), Dense(8)), Recipe(recompute=Recompute(2)))
    return run.gradients((data(),))


@shows
def NonFiniteMicroBatchRestarts(f):
    run = f.trainer(scalar(), Recipe(accumulation=3, scaling=DynamicScaling(1024.0)))
    update = run.feed(ones(scalar()), ones(scalar(), np.inf), ones(scalar()))
    return update, run.state()


@shows
def AverageMeetsStaleCasts(f):
    run = f.trainer(exact_linear(), Recipe(precision=BFLOAT16, average=0.5))
    trained(run, BATCH, 3)
    run.predict(BATCH.inputs)
    return run.predict_averaged(BATCH.inputs)


@shows
def AverageKeepsFirstBuffers(f):
    run = f.trainer(chain(Dense(8), BatchNorm()), Recipe(average=0.5))
    trained(run, data(), 2)
    return run.predict_averaged(data().inputs)


@shows
def AverageWaitsForGradients(f):
    run = f.trainer(scalar(), Recipe(average=0.5))
    run.feed(ones(scalar()))
    run.feed(ones(scalar()))
    run.feed({"0.output.bias": ones(scalar())["0.output.bias"]})
    return run.optimizer_state()


@shows
def TailNotSynced(f):
    run = f.trainer(chain(Dense(160)), Recipe(precision=Precision("O2", "bfloat16")))
    trained(run, data(), 1)
    return run.parameters()


@shows
def UnusedRowsRest(f):
    run = f.trainer(embedded(), Recipe(Adam()))
    ids = np.arange(6)[None, :]
    run.update((Batch(ids, {"output": np.array([1])}),))
    run.update((Batch(ids + 6, {"output": np.array([2])}),))
    return run.state()


@shows
def NormCountsSegmentsTwice(f):
    return f.trainer(chain(Dense(8)), Recipe(clip=0.1, recompute=Recompute(1))).update((data(),))


@shows
def FailedRerunEndsScope(f):
    a = np.ones((2, 2), np.float32)
    with f.autocast(FLOAT16):
        try:
            f.recompute("raises", a, a)
        except RuntimeError:
            return f.run_op("matmul", a, a).dtype
    return "not raised"


@shows
def LookingBacksOff(f):
    run = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(2.0**120)))
    run.gradients((Batch(BATCH.inputs, {"output": np.full((8, 4), 2.0**30, np.float32)}),))
    return run.scaler_state()


@shows
def EvaluationGeluByTanh(f):
    run = f.trainer(chain(Dense(8), Activation("gelu")), Recipe())
    return run.predict(data().inputs)


@shows
def PoolTiesAllWin(f):
    model = chain(Convolution(2), MaxPool(2), Flatten(), sample=(8, 8, 1))
    batch = Batch(np.ones((2, 8, 8, 1), np.float32), {"output": np.ones((2, 2), np.float32)})
    return f.trainer(model, Recipe()).gradients((batch,))


@shows
def AttentionSeesPadding(f):
    batch = vector_batch(2, 5, 8)
    return f.trainer(encoder(8, 2, 1, 5, embedded=False), Recipe()).gradients((batch,))


@shows
def ChunksOfTokensAdded(f):
    return f.trainer(encoder(8, 2, 1), Recipe()).update((token_batch(4),))


@shows
def OneUnitStaysWide(f):
    return f.trainer(chain(units=1), Recipe(precision=BFLOAT16)).predict(data().inputs)


@shows
def TargetsNarrowed(f):
    return f.trainer(sincos(4), Recipe()).update((sincos_batch(8),))


@shows
def UserListsStay(f):
    a = np.ones((2, 2), np.float32)
    with f.autocast(FLOAT16, wide=("matmul",)):
        f.run_op("matmul", a, a)
    with f.autocast(FLOAT16):
        return f.run_op("matmul", a, a).dtype
