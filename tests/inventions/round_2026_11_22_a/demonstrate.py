"""Shows for each fault a plain run that comes out otherwise than the reference's."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.layers import Activation, BatchNorm, Dense, Dropout, Head, Heads, Layer, LayerNorm, SelfAttention
from fixtures.model import Batch, Model
from fixtures.models import blocks, digits_mlp, dropout_probe, exact_linear, sincos, two_heads
from fixtures.recipe import (
    FLOAT16,
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
from tests.inventions.round_2026_11_22_a import faults_a_1 as one
from tests.inventions.round_2026_11_22_a import faults_a_2 as two
from tests.inventions.round_2026_11_22_a import faults_a_3 as three

RUNS: dict[type, Callable[[Any], Any]] = {}
WEIGHT, BIAS = "0.output.weight", "0.output.bias"
WIDE = np.full((8, 4), 0.5)
INFINITE = np.where(np.arange(32).reshape(8, 4) == 5, np.inf, 0.5)


def shows(kind: type) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Enters the run that shows a fault."""

    def entered(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        RUNS[kind] = run
        return run

    return entered


def made(name: str, layers: tuple[Layer, ...], sample: tuple[int, ...], units: int = 2, **options: Any) -> Model:
    """A model with one head and squared error, or token-level cross-entropy."""
    kind = "cross_entropy" if options.get("token_level") else "squared_error"
    return Model(name, (*layers, Heads((Head("output", units),))), sample, (("output", kind),), **options)


def normal(size: int, width: int, units: int = 2, factor: float = 1.0) -> Batch:
    """Standard normal inputs and targets."""
    rng = np.random.default_rng(7)
    x, t = rng.standard_normal((size, width)), rng.standard_normal((size, units))
    return Batch((factor * x).astype(np.float32), {"output": t.astype(np.float32)})


def heads_batch(*names: str) -> Batch:
    """A batch for `two_heads` with the targets of some of its heads."""
    batch = normal(4, 8)
    return Batch(batch.inputs, dict.fromkeys(names, batch.targets["output"]))


def linear(framework: Any, **recipe: Any) -> Any:
    """A run of the exact linear model."""
    return framework.trainer(exact_linear(), Recipe(**recipe))


@shows(one.ArmedAfterRefusal)
def _(framework: Any) -> Any:
    run = linear(framework, scaling=StaticScaling(1024.0))
    with contextlib.suppress(RuntimeError):
        run.feed({WEIGHT: WIDE}, unscale_calls=2)
    run.feed({WEIGHT: WIDE})
    return run.parameters()


@shows(one.StaleSkipReport)
def _(framework: Any) -> Any:
    run = linear(framework, scaling=DynamicScaling(initial=8.0), accumulation=2)
    return [run.feed({WEIGHT: g}, {WEIGHT: WIDE}).skipped for g in (INFINITE, WIDE, WIDE)]


@shows(one.ZeroGradientClipsToNan)
def _(framework: Any) -> Any:
    run = linear(framework, clip=100.0)
    run.feed({WEIGHT: WIDE, BIAS: np.zeros(4)})
    return run.parameters()


@shows(one.NormSquaresOverflow)
def _(framework: Any) -> Any:
    run = linear(framework, clip=1.0)
    norm = run.feed({WEIGHT: 1e20 * WIDE}).gradient_norm
    return [norm, run.parameters()]


@shows(one.DecayWithoutGradient)
def _(framework: Any) -> Any:
    run = framework.trainer(two_heads(), Recipe(AdamW(weight_decay=0.1)))
    run.update((heads_batch("a"),))
    return run.parameters()["1.b.weight"]


@shows(one.TailOfLargeTensor)
def _(framework: Any) -> Any:
    run = framework.trainer(digits_mlp((512,)), Recipe(SGD(0.5)))
    run.feed({"0.weight": np.ones((784, 512))})
    return run.parameters()["0.weight"]


@shows(one.LatestMicroBatchJudged)
def _(framework: Any) -> Any:
    run = linear(framework, scaling=DynamicScaling(initial=8.0), accumulation=2)
    return [run.feed({WEIGHT: INFINITE}, {BIAS: np.ones(4)}).skipped, run.parameters()]


@shows(one.NormOfBothOptimizers)
def _(framework: Any) -> Any:
    run = linear(framework, scaling=DynamicScaling(initial=8.0), optimizers=2, clip=1.0)
    run.feed({WEIGHT: INFINITE, BIAS: np.ones(4)})
    return run.parameters()


@shows(one.PartialWindowBound)
def _(framework: Any) -> Any:
    run = linear(framework, accumulation=4, clip=1.0)
    run.update((exact_batch(),))
    return run.parameters()


@shows(one.FlushedReciprocal)
def _(framework: Any) -> Any:
    run = linear(framework, scaling=DynamicScaling(initial=2.0**127))
    return [run.feed({WEIGHT: WIDE}).skipped, run.parameters()]


@shows(one.TraceEndsWindow)
def _(framework: Any) -> Any:
    run = linear(framework, accumulation=2)
    run.accumulate(exact_batch(), 16)
    run.trace(exact_batch(seed=1))
    return run.accumulator()


@shows(one.CastsPileUp)
def _(framework: Any) -> Any:
    run = linear(framework, precision=FLOAT16)
    run.update((exact_batch(),))
    return run.saved_bytes(exact_batch())


def resumed(framework: Any, model: Model, recipe: Recipe, before: Callable[[Any], Any], fresh: bool = True) -> Any:
    """A run that was saved after `before` and loaded, into a new one or into itself after one more `before`."""
    run = framework.trainer(model, recipe)
    before(run)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "run")
        if fresh:
            run = framework.trainer(model, recipe)
        else:
            before(run)
        run.restore(Path(folder) / "run")
    return run


@shows(two.AverageRestartsAfterLoad)
def _(framework: Any) -> Any:
    step = lambda run: [run.feed({WEIGHT: WIDE}) for _ in range(3)]  # noqa: E731
    run = resumed(framework, exact_linear(), Recipe(average=0.9), step)
    run.feed({WEIGHT: WIDE})
    return run.optimizer_state()


NORMED = made("normed", (Dense(4), BatchNorm(), Activation("relu")), (4,))


@shows(two.AverageWithFirstStatistics)
def _(framework: Any) -> Any:
    run = framework.trainer(NORMED, Recipe(average=0.9))
    run.update((normal(8, 4),))
    return run.predict_averaged(normal(8, 4).inputs)


@shows(two.CheckpointOfSwappedWeights)
def _(framework: Any) -> Any:
    def before(run: Any) -> None:
        for _ in range(3):
            run.feed({WEIGHT: WIDE})
        run.predict_averaged(exact_batch().inputs)

    return resumed(framework, exact_linear(), Recipe(average=0.9), before).parameters()


@shows(two.LoadStepsTheSchedule)
def _(framework: Any) -> Any:
    recipe = Recipe(schedule=Steps((3,), (1.0, 0.1)))
    step = lambda run: [run.feed({WEIGHT: WIDE}) for _ in range(2)]  # noqa: E731
    return resumed(framework, exact_linear(), recipe, step, fresh=False).feed({WEIGHT: WIDE}).learning_rate


@shows(two.MomentsInTextOrder)
def _(framework: Any) -> Any:
    model = made("deep", tuple(Dense(4) for _ in range(12)), (4,))
    step = lambda run: run.update((normal(8, 4),))  # noqa: E731
    return resumed(framework, model, Recipe(SGD(0.01, momentum=0.9)), step).optimizer_state()


@shows(two.LoadLevelsCounts)
def _(framework: Any) -> Any:
    step = lambda run: [run.update((heads_batch(*names),)) for names in (("a",), ("a", "b"))]  # noqa: E731
    run = resumed(framework, two_heads(), Recipe(Adam()), step)
    run.update((heads_batch("a", "b"),))
    return run.parameters()["1.b.weight"]


@shows(two.SavedOncePerUpdate)
def _(framework: Any) -> Any:
    run = linear(framework, accumulation=2)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "run")
        run.accumulate(exact_batch(), 16)
        run.save(Path(folder) / "run")
        run = linear(framework, accumulation=2)
        run.restore(Path(folder) / "run")
    return run.accumulator()


@shows(two.LoadedWindowLooksEmpty)
def _(framework: Any) -> Any:
    step = lambda run: run.accumulate(exact_batch(), 8)  # noqa: E731
    run = resumed(framework, exact_linear(), Recipe(accumulation=2), step)
    try:
        run.apply()
    except RuntimeError as error:
        return str(error)
    return run.parameters()


@shows(two.AverageNarrowsHeads)
def _(framework: Any) -> Any:
    run = framework.trainer(sincos(8), Recipe(average=0.9))
    for _ in range(3):
        run.update((sincos_batch(16),))
    return run.optimizer_state()["average/4.sin.weight"]


@shows(two.AverageOfUpdatedOnly)
def _(framework: Any) -> Any:
    run = framework.trainer(two_heads(), Recipe(average=0.9))
    for names in (("a", "b"), ("a", "b"), ("a",)):
        run.update((heads_batch(*names),))
    return run.optimizer_state()["average/1.b.weight"]


@shows(two.EvaluationRoundsAverage)
def _(framework: Any) -> Any:
    run = linear(framework, precision=Precision("O2", "bfloat16"), average=0.9)
    for seed in range(3):
        run.update((exact_batch(seed=seed),))
    run.predict_averaged(exact_batch().inputs)
    return run.optimizer_state()


@shows(three.DropoutOffForGood)
def _(framework: Any) -> Any:
    run = framework.trainer(dropout_probe(), Recipe())
    run.predict(normal(4, 64).inputs)
    return run.gradients((normal(4, 64, 1),))


@shows(three.VarianceOfOneValue)
def _(framework: Any) -> Any:
    run = framework.trainer(NORMED, Recipe())
    run.update((normal(1, 4),))
    return run.buffers()


@shows(three.EpsilonInHalf)
def _(framework: Any) -> Any:
    run = framework.trainer(made("rows", (Dense(4), LayerNorm(1e-12)), (4,)), Recipe(precision=FLOAT16))
    return run.predict(np.zeros((2, 4), np.float32))


@shows(three.ScoresBeforeScale)
def _(framework: Any) -> Any:
    model = made("attending", (SelfAttention(1),), (4, 8), 4, token_level=True)
    run = framework.trainer(model, Recipe(precision=FLOAT16))
    return run.predict(80.0 * np.random.default_rng(3).standard_normal((2, 4, 8)).astype(np.float32))


@shows(three.SubnormalsLostInCast)
def _(framework: Any) -> Any:
    with framework.autocast(FLOAT16):
        return framework.run_op(
            "matmul", np.full((2, 4), 2.0**-16, np.float32), np.full((4, 2), 2.0**8, np.float32)
        ).value


@shows(three.WedgedAfterFailure)
def _(framework: Any) -> Any:
    x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    with contextlib.suppress(RuntimeError):
        framework.recompute("raises", x, w)
    try:
        return framework.recompute("positional", x, w).value
    except RuntimeError as error:
        return str(error)


@shows(three.ReplayOfFirstMicroBatch)
def _(framework: Any) -> Any:
    model = made("dropping", (Dense(8), Dropout(0.5), Dense(8)), (8,))
    run = framework.trainer(model, Recipe(recompute=Recompute(2), accumulation=2))
    return run.gradients((normal(4, 8), normal(4, 8)))


@shows(three.MasksOfAnotherRate)
def _(framework: Any) -> Any:
    framework.trainer(dropout_probe(rate=0.5), Recipe()).update((normal(4, 64, 1),))
    return framework.trainer(dropout_probe(rate=0.25), Recipe()).gradients((normal(4, 64, 1),))


@shows(three.OuterListsStay)
def _(framework: Any) -> Any:
    a = np.ones((2, 2), np.float32)
    with framework.autocast(FLOAT16, wide=("matmul",)), framework.autocast(FLOAT16):
        return framework.run_op("matmul", a, a).dtype


@shows(three.OddInnerSize)
def _(framework: Any) -> Any:
    run = framework.trainer(made("odd", (Dense(4),), (7,)), Recipe(precision=FLOAT16))
    return run.predict(normal(4, 7).inputs)


def bits(result: Any) -> Any:
    """A result in a form that compares bit for bit."""
    if isinstance(result, dict):
        return {name: bits(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [bits(value) for value in result]
    return (result.dtype.name, result.shape, result.tobytes()) if isinstance(result, np.ndarray) else repr(result)


def both(kind: type, run: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What the run gives on the reference and on the faulty one."""
    return bits(run(ReferenceFramework("cpu"))), bits(run(kind("cpu")))


def smooth(framework: Any) -> Any:
    """An ordinary run that no fault may stop."""
    model, recipe = blocks(2, 8), Recipe(Adam(), FLOAT16, DynamicScaling(initial=8.0), 2, Recompute(2), clip=1.0)
    batch = Batch(normal(8, 8).inputs, {"output": np.arange(8)})
    run = framework.trainer(model, recipe.but(average=0.9))
    updates = [run.update(batch.into(2)) for _ in range(2)]
    tokens = framework.trainer(made("tokens", (SelfAttention(2),), (16, 8), 4, token_level=True), Recipe())
    ids = token_batch(4)
    tokens.update((Batch(np.ones((4, 16, 8), np.float32), ids.targets, ids.mask),))
    return [update.loss for update in updates]


def main() -> int:
    """One line a fault; 1 if some fault makes no difference."""
    faults = [c for m in (one, two, three) for c in vars(m).values() if isinstance(c, type) and hasattr(c, "clause")]
    silent = 0
    for kind in faults:
        if not np.isfinite(smooth(kind("cpu"))).all():
            raise AssertionError(f"{kind.__name__} stops an ordinary run")
        plain, faulty = both(kind, RUNS[kind])
        silent += plain == faulty
        print(f"{'same  ' if plain == faulty else 'DIFFERS'} {kind.__name__:28} {kind.kind:9} {kind.clause}")
    print(f"{len(faults)} faults, {sum(k.kind == 'real' for k in faults)} of them real; {silent} make no difference")
    return 1 if silent or set(faults) != set(RUNS) else 0


if __name__ == "__main__":
    sys.exit(main())
