# ruff: noqa: N802 - a run is named after the fault that it shows

"""Runs that show the faults of checkpoints, clipping, scaling and schedules."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fixtures.layers import (
    Dense,
    LayerNorm,
)
from fixtures.model import Batch
from fixtures.models import exact_linear, scalar, two_heads
from fixtures.recipe import (
    FLOAT16,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Precision,
    Recipe,
    StaticScaling,
)
from tests.inventions.round_2026_11_22_c.shows_c import BATCH, STEPS, chain, data, ones, resumed, shows, trained


@shows
def RateFrozenAfterLoad(f):
    return resumed(f, exact_linear(), Recipe(schedule=STEPS), BATCH, 2, 4)


@shows
def DecayBehindAfterLoad(f):
    return resumed(f, exact_linear(), Recipe(AdamW(0.1, weight_decay=0.1), schedule=STEPS), BATCH, 2, 1)


@shows
def MomentsInGroupOrder(f):
    model = chain(LayerNorm(), Dense(8), LayerNorm(), Dense(8))
    return resumed(f, model, Recipe(Adam(), groups=2), data(), 2, 1)


@shows
def CountCastOnLoad(f):
    run = f.trainer(scalar(), Recipe(Adam(), precision=Precision("O3", "bfloat16")))
    for _ in range(257):
        run.feed(ones(scalar()))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.restore(Path(folder))
    return run.optimizer_state()


@shows
def MomentsWidenOnLoad(f):
    return resumed(f, chain(Dense(8)), Recipe(Adam(0.01), precision=Precision("O3", "bfloat16")), data(), 1, 6)


@shows
def CheckpointAliased(f):
    run = f.trainer(exact_linear(), Recipe(Adam()))
    trained(run, BATCH, 1)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.restore(Path(folder))
        trained(run, BATCH, 2)
        run.restore(Path(folder))
    return run.state()


@shows
def CastsOutliveLoad(f):
    run = f.trainer(exact_linear(), Recipe(precision=FLOAT16))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        trained(run, BATCH, 2)
        run.predict(BATCH.inputs)
        run.restore(Path(folder))
    return run.update((BATCH,))


@shows
def MidWindowItemsLost(f):
    run = f.trainer(exact_linear(), Recipe(accumulation=2))
    first, second = BATCH.into(2)
    run.accumulate(first, 8)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.restore(Path(folder))
    run.accumulate(second, 8)
    return run.apply()


@shows
def HalvesAreAlike(f):
    with tempfile.TemporaryDirectory() as folder:
        f.trainer(exact_linear(), Recipe(precision=Precision("O3", "float16"))).save(Path(folder))
        f.trainer(exact_linear(), Recipe(precision=Precision("O3", "bfloat16"))).restore(Path(folder))
    return "loaded"


@shows
def ClipsOnlyOnce(f):
    run = f.trainer(exact_linear(), Recipe(clip=0.125))
    trained(run, BATCH, 2)
    return run.state()


@shows
def NothingToClipRaises(f):
    return f.trainer(exact_linear(), Recipe(clip=1.0)).feed({}).skipped


@shows
def NormSquaredLow(f):
    run = f.trainer(exact_linear(), Recipe(precision=Precision("O3", "float16"), clip=1.0))
    return run.feed(ones(exact_linear(), 300.0)), run.state()


@shows
def ZeroNormRaises(f):
    return f.trainer(exact_linear(), Recipe(clip=1.0)).feed(ones(exact_linear(), 0.0)).skipped


@shows
def ScheduleCountsOptimizers(f):
    run = f.trainer(exact_linear(), Recipe(schedule=STEPS, optimizers=2))
    return [u.learning_rate for u in trained(run, BATCH, 5)]


@shows
def CounterRunsOnAtTheCap(f):
    run = f.trainer(scalar(), Recipe(scaling=DynamicScaling(2.0**127, 2.0, 0.5, 2)))
    tiny = ones(scalar(), 2.0**-80)
    return [(u.scale_after, u.good_steps) for u in (run.feed(tiny) for _ in range(5))]


@shows
def AbandonedOverflowLingers(f):
    run = f.trainer(scalar(), Recipe(scaling=DynamicScaling(1024.0)))
    run.feed(ones(scalar(), np.inf), abandon=True)
    return run.feed(ones(scalar())), run.state()


@shows
def OverflowBySquares(f):
    run = f.trainer(scalar(), Recipe(SGD(2.0**-66), scaling=DynamicScaling(1.0)))
    return run.feed(ones(scalar(), 2.0**66)), run.state()


@shows
def ReciprocalFlushed(f):
    run = f.trainer(scalar(), Recipe(scaling=StaticScaling(2.0**127)))
    run.feed(ones(scalar(), 2.0**-10))
    return run.state()


@shows
def FirstLossOverflowRepaired(f):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 8)).astype(np.float32)
    b = rng.standard_normal((4, 2)).astype(np.float32)
    run = f.trainer(two_heads(), Recipe(scaling=DynamicScaling(1024.0), separate_losses=True))
    return run.update((Batch(x, {"a": np.full((4, 2), 3e38, np.float32), "b": b}),)), run.state()
