"""Runs each fault next to the plain reference on a small course of the contract, and fails where they do not differ."""

# ruff: noqa: ARG005, N802 - a function has the name of its fault

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.layers import Activation, BatchNorm, Convolution, Dense, Dropout, Flatten, Head, Heads, MaxPool
from fixtures.model import Batch, Model
from fixtures.models import encoder, exact_linear, scalar, sincos
from fixtures.recipe import (
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Precision,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from frameworks.reference.framework import ReferenceFramework

W, B = "0.output.weight", "0.output.bias"
FIRST, SECOND = exact_batch(4, seed=1), exact_batch(4, seed=2)
COURSES: dict[str, Callable[[Any], Any]] = {}


def course(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Notes a course under the name of the fault that it shows."""
    COURSES[function.__name__] = function
    return function


def single(name: str, layers: tuple[Any, ...], units: int, sample: tuple[int, ...], loss: Any) -> Model:
    """A model with one head."""
    return Model(name, (*layers, Heads((Head("output", units),))), sample, (("output", loss),))


def images(count: int, height: int, width: int, seed: int = 0) -> Batch:
    """Normal images of one channel with labels below 3."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, height, width, 1)).astype(np.float32)
    return Batch(inputs, {"output": rng.integers(0, 3, count)})


def norm_model(dropout: float = 0.0) -> Model:
    """Dense layers with batch norm and perhaps dropout."""
    drop = (Dropout(dropout),) if dropout else ()
    return single("norms", (Dense(6), BatchNorm(), Activation("tanh"), *drop, Dense(4)), 4, (8,), "squared_error")


def continued(framework: Any, model: Model, recipe: Recipe, before: Callable[[Any], Any], weights: Any = None) -> Any:
    """A run that `before` trained, saved, and loaded into another one."""
    run = framework.trainer(model, recipe, weights)
    before(run)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other = framework.trainer(model, recipe)
        other.restore(Path(folder))
    return other


def fed(run: Any, *values: float, **named: Any) -> Any:
    """Feeds the scalar model gradients of its weight."""
    return run.feed(*({W: np.full((1, 1), value)} for value in values), **named)


@course
def GeluDividesByInput(framework: Any) -> Any:
    model = single("gelu", (Dense(4), Activation("gelu")), 4, (8,), "squared_error")
    batch = Batch(np.zeros((2, 8), np.float32), {"output": np.ones((2, 4), np.float32)})
    return framework.trainer(model, Recipe()).gradients((batch,))


@course
def PoolFeedsNearlyLargest(framework: Any) -> Any:
    model = single("pool", (Convolution(2), MaxPool(2), Flatten()), 3, (4, 4, 1), "cross_entropy")
    batch = images(2, 4, 4)
    near = Batch((1.0 + 1e-3 * batch.inputs).astype(np.float32), batch.targets)
    return framework.trainer(model, Recipe()).gradients((near,))


@course
def ReluClearsNan(framework: Any) -> Any:
    model = single("relu", (Dense(4), Activation("relu")), 4, (8,), "squared_error")
    inputs = FIRST.inputs.copy()
    inputs[0, 0] = np.nan
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(initial=2.0**8)))
    return run.predict(inputs), run.update((Batch(inputs, FIRST.targets),)).loss


@course
def BoundaryAtZeroComesLate(framework: Any) -> Any:
    run = framework.trainer(exact_linear(), Recipe(schedule=Steps((0, 2), (1.0, 0.5, 0.25))))
    return [run.update((FIRST,)).learning_rate for _ in range(3)]


@course
def ScheduleSavedBeforeItMoves(framework: Any) -> Any:
    recipe = Recipe(schedule=Steps((2,), (1.0, 0.5)))
    run = continued(framework, exact_linear(), recipe, lambda r: [r.update((FIRST,)) for _ in range(2)])
    return run.update((SECOND,)).learning_rate, run.state()


@course
def SquaresLeaveFloat32(framework: Any) -> Any:
    run = framework.trainer(scalar(), Recipe(clip=1.0))
    return fed(run, 1e25).gradient_norm, run.parameters(), fed(run, 1e-25).gradient_norm


@course
def EarlySaveCountsAStep(framework: Any) -> Any:
    run = framework.trainer(exact_linear(), Recipe(optimizer=Adam(beta1=0.5)))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
    run.update((FIRST,))
    return run.state()


@course
def SecondLossAfterLoadIsMixed(framework: Any) -> Any:
    run = continued(framework, exact_linear(), Recipe(), lambda r: r.update((FIRST,)))
    return [run.update((batch,)).loss for batch in (SECOND, FIRST, SECOND)]


@course
def StatisticsInTwoHalves(framework: Any) -> Any:
    found = []
    for depth in (1, 2):
        run = framework.trainer(norm_model(), Recipe(recompute=Recompute(2, depth=depth)))
        run.update((FIRST,))
        found.append(run.buffers())
    return found


@course
def LastOverflowIsForgotten(framework: Any) -> Any:
    def before(run: Any) -> None:
        for value in (1.0, 1.0, np.inf, 1.0):
            fed(run, value)

    run = continued(framework, scalar(), Recipe(scaling=DynamicScaling(2.0**8, interval=4)), before)
    return [(fed(run, 1.0).scale_after, int(run.scaler_state()["good_steps"])) for _ in range(3)]


@course
def EvaluationBeforeTraining(framework: Any) -> Any:
    return framework.trainer(norm_model(), Recipe()).predict(FIRST.inputs)


@course
def HeightTakenForWidth(framework: Any) -> Any:
    layers = (Convolution(2), Activation("tanh"), Convolution(2), Flatten())
    model = single("wide", layers, 3, (4, 6, 1), "cross_entropy")
    return framework.trainer(model, Recipe()).gradients((images(2, 4, 6),))


@course
def RateInWeightsFormat(framework: Any) -> Any:
    recipe = Recipe(optimizer=SGD(2.0**-26), precision=Precision("O3", "float16"))
    run = framework.trainer(scalar(0.0), recipe)
    fed(run, 2.0**14)
    return run.parameters()


@course
def StaleGradientsInNorm(framework: Any) -> Any:
    run = framework.trainer(scalar(), Recipe(clip=1.0))
    run.feed({W: np.full((1, 1), 1.0), B: np.full(1, 8.0)})
    run.feed({W: np.full((1, 1), 4.0)})
    return run.parameters()


@course
def PaddedClassesCount(framework: Any) -> Any:
    batch = Batch(FIRST.inputs, {"output": np.array([0, 16, 3, 9])})
    return framework.trainer(single("classes", (), 17, (8,), "cross_entropy"), Recipe()).update((batch,)).loss


@course
def TransposedWeightsSavedAsStored(framework: Any) -> Any:
    model = exact_linear()
    weights = {n: np.ascontiguousarray(w.T).T for n, w in model.weights(0).items()}
    return continued(framework, model, Recipe(), lambda r: None, weights).parameters()


@course
def FailedBatchKeepsItsItems(framework: Any) -> Any:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(FIRST, 8)
    with contextlib.suppress(ValueError):
        run.accumulate(Batch(FIRST.inputs[:, :5], FIRST.targets), 8)
    run.accumulate(SECOND, 8)
    return run.apply()


@course
def AbandonAsksFirstOptimizer(framework: Any) -> Any:
    run = framework.trainer(scalar(), Recipe(optimizers=2, scaling=DynamicScaling(2.0**8, interval=1)))
    return run.feed({W: np.ones((1, 1)), B: np.full(1, np.inf)}, abandon=True).scale_after


@course
def UnscalingFlushesSubnormals(framework: Any) -> Any:
    run = framework.trainer(scalar(0.0), Recipe(optimizer=SGD(2.0**20), scaling=StaticScaling(2.0**10)))
    fed(run, 2.0**-130)
    return run.parameters()


@course
def LoadLosesSignOfZero(framework: Any) -> Any:
    model = exact_linear()
    weights = {n: np.where(w == 0.0, np.float32(-0.0), w) for n, w in model.weights(0).items()}
    return continued(framework, model, Recipe(), lambda r: None, weights).parameters()


@course
def SecondGroupDecaysByDefault(framework: Any) -> Any:
    recipe = Recipe(optimizer=AdamW(0.1, weight_decay=0.5), groups=2)
    start = {n: w + 1.0 for n, w in exact_linear().weights(0).items()}
    run = continued(framework, exact_linear(), recipe, lambda r: r.update((FIRST,)), start)
    run.update((SECOND,))
    return run.parameters()


@course
def FailedEvaluationLeavesAverage(framework: Any) -> Any:
    run = framework.trainer(exact_linear(), Recipe(average=0.5))
    run.update((FIRST,))
    run.update((SECOND,))
    with contextlib.suppress(ValueError):
        run.predict_averaged(FIRST.inputs[:, :5])
    return run.predict(FIRST.inputs)


@course
def ReplayCountsInAByte(framework: Any) -> Any:
    run = framework.trainer(norm_model(0.5), Recipe(recompute=Recompute(1)))
    small = FIRST.part(0, 2)
    for _ in range(256):
        run.accumulate(small, 2)
    run.apply()
    return run.gradients((FIRST,))


@course
def OpenWindowSavedInFloat32(framework: Any) -> Any:
    first, second = sincos_batch(8).into(2)
    run = continued(framework, sincos(4), Recipe(accumulation=2), lambda r: r.accumulate(first, 8))
    run.accumulate(second, 8)
    run.apply()
    return run.parameters()


@course
def ScalerRuleOfFirstRun(framework: Any) -> Any:
    found = []
    for interval, backoff in ((3, 0.5), (2, 0.25)):
        run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(2.0**8, 2.0, backoff, interval)))
        found += [fed(run, value).scale_after for value in (1.0, 1.0, 1.0, np.inf)]
    return found


@course
def NothingCountsAsOneItem(framework: Any) -> Any:
    batch = token_batch(2, seed=3)
    none = Batch(batch.inputs, batch.targets, np.zeros_like(batch.mask))
    run = framework.trainer(encoder(8, 2, 1), Recipe(accumulation=2))
    return run.update((batch, none)).loss


@course
def NormFromBeforeTheCaller(framework: Any) -> Any:
    run = framework.trainer(scalar(), Recipe(clip=1.0, scaling=StaticScaling(2.0**4)))
    update = fed(run, 0.5, poison={W: np.full((1, 1), 8.0)})
    return update.gradient_norm, run.parameters()


@course
def LossScaledInBfloat16(framework: Any) -> Any:
    recipe = Recipe(precision=Precision("O1", "bfloat16"), scaling=StaticScaling(1001.0))
    run = framework.trainer(scalar(), recipe)
    fed(run, 1.0)
    return run.parameters()


@course
def EvaluationKeepsStatistics(framework: Any) -> Any:
    run = framework.trainer(norm_model(), Recipe(accumulation=2))
    run.accumulate(FIRST, 8)
    before = run.predict(FIRST.inputs)
    run.accumulate(SECOND, 8)
    return before, run.predict(FIRST.inputs)


@course
def RefusedLoadDropsWindow(framework: Any) -> Any:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(FIRST, 8)
    with contextlib.suppress(ValueError):
        run.restore(Path("/nonexistent"))
    return run.accumulator()


def flat(result: Any) -> Any:
    """Something that tells two results apart bit for bit."""
    if isinstance(result, dict):
        return {key: flat(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [flat(value) for value in result]
    if isinstance(result, np.ndarray | float):
        array: Array = np.asarray(result)
        return array.dtype.name, array.shape, np.ascontiguousarray(array).tobytes()
    return repr(result)


def main() -> int:
    modules = [importlib.import_module(f"tests.inventions.round_2026_11_23_g.faults_g_{i}") for i in (1, 2, 3)]
    faults = {n: f for m in modules for n, f in vars(m).items() if hasattr(f, "clause")}
    same = []
    for name, faulty in faults.items():
        plain, other = (flat(COURSES[name](kind("cpu"))) for kind in (ReferenceFramework, faulty))
        if plain == other:
            same.append(name)
        print(f"{name:32} {faulty.kind:9} {faulty.clause:44} {'SAME' if plain == other else 'differs'}")
    unused = sorted(COURSES.keys() - faults.keys())
    print(f"{len(faults)} faults, {len(faults) - len(same)} differ; courses without a fault: {unused}")
    return bool(same or unused)


if __name__ == "__main__":
    sys.exit(main())
