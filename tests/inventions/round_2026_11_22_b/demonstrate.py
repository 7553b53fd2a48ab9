"""Shows for each fault a plain run that goes otherwise than the reference's; `python -m invented.demonstrate_b`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.data import digits_batch, exact_batch, one_hot_batch, token_batch, wide_batch
from fixtures.layers import BatchNorm, Dense, Dropout, Head, Heads, LayerNorm, Residual
from fixtures.model import Batch, Model
from fixtures.models import blocks, digits_mlp, dropout_probe, embedded, encoder, exact_linear, scalar, two_heads
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    SGD,
    Adam,
    DynamicScaling,
    Recipe,
    Recompute,
    StaticScaling,
    Steps,
)
from frameworks.reference.framework import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_22_b import faults_b_1 as one
from tests.inventions.round_2026_11_22_b import faults_b_2 as two
from tests.inventions.round_2026_11_22_b import faults_b_3 as three
from tests.inventions.round_2026_11_22_b import faults_b_4 as four

Run = Callable[[ReferenceFramework], Any]
DEMONSTRATIONS: dict[type[ReferenceFramework], Run] = {}


def shows(fault: type[ReferenceFramework]) -> Callable[[Run], Run]:
    """Registers the demonstration of a fault."""

    def noted(run: Run) -> Run:
        DEMONSTRATIONS[fault] = run
        return run

    return noted


def bits(value: Any) -> Any:
    """A result in a form that compares bit for bit."""
    if isinstance(value, Mapping):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [bits(part) for part in value]
    if isinstance(value, np.ndarray | np.generic | float):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    return repr(value)


def model(*layers: Any, sample: tuple[int, ...], units: int = 2) -> Model:
    """A model with one regression head."""
    return Model("drawn", (*layers, Heads((Head("output", units),))), sample, (("output", "squared_error"),))


def batch(size: int, inputs: int, units: int = 2, seed: int = 0) -> Batch:
    """Normal inputs and targets for `model`."""
    rng = np.random.default_rng(seed)
    given, targets = (rng.standard_normal((size, width)).astype(np.float32) for width in (inputs, units))
    return Batch(given, {"output": targets})


def resumed(framework: ReferenceFramework, made: Model, recipe: Recipe, before: Any, after: Any) -> Any:
    """Trains, saves, loads into a new run and goes on with that one."""
    with tempfile.TemporaryDirectory() as folder:
        first = framework.trainer(made, recipe)
        before(first)
        first.save(Path(folder))
        second = framework.trainer(made, recipe)
        second.restore(Path(folder))
        after(second)
        return second.state()


def steps(count: int, seed: int = 0) -> Callable[[Any], None]:
    """So many updates with exact batches."""

    def take(run: Any) -> None:
        for index in range(count):
            run.update((exact_batch(seed=seed + index),))

    return take


AVERAGED = Recipe(average=0.75)
ADAM = Recipe(optimizer=Adam())


@shows(one.AverageInWeightsPlace)
def _(framework: ReferenceFramework) -> Any:
    def before(run: Any) -> None:
        steps(3)(run)
        run.predict_averaged(exact_batch().inputs)

    return resumed(framework, exact_linear(), AVERAGED, before, steps(0))


@shows(one.AverageBeginsAnewAfterLoad)
def _(framework: ReferenceFramework) -> Any:
    return resumed(framework, exact_linear(), AVERAGED, steps(3), steps(1, 5))


@shows(one.OlderPartsSurvive)
def _(framework: ReferenceFramework) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        run = framework.trainer(exact_linear(), Recipe(accumulation=2))
        run.accumulate(exact_batch(), 16)
        run.save(Path(folder))
        run.accumulate(exact_batch(seed=1), 16)
        run.apply()
        run.save(Path(folder))
        run.restore(Path(folder))
        run.update((exact_batch(seed=2), exact_batch(seed=3)))
        return run.state()


@shows(one.BetaPowersSwappedByLoad)
def _(framework: ReferenceFramework) -> Any:
    return resumed(framework, exact_linear(), ADAM, steps(2), steps(1, 5))


@shows(one.LoadedRateBecomesBase)
def _(framework: ReferenceFramework) -> Any:
    recipe = Recipe(schedule=Steps((2,), (1.0, 0.5)))
    return resumed(framework, exact_linear(), recipe, steps(3), steps(1, 5))


@shows(one.LoadedMomentsSavedAgain)
def _(framework: ReferenceFramework) -> Any:
    def after(run: Any) -> None:
        steps(2, 5)(run)
        with tempfile.TemporaryDirectory() as folder:
            run.save(Path(folder))
            run.restore(Path(folder))

    return resumed(framework, exact_linear(), ADAM, steps(2), after)


@shows(one.AverageAsleepAfterLoad)
def _(framework: ReferenceFramework) -> Any:
    shown: list[Any] = []
    after = lambda run: shown.append(run.predict_averaged(exact_batch().inputs))  # noqa: E731
    resumed(framework, exact_linear(), AVERAGED, steps(3), after)
    return shown


@shows(one.MomentsLoadedByPlace)
def _(framework: ReferenceFramework) -> Any:
    train = lambda run: [run.update((wide_batch(8, 8),)) for _ in range(2)]  # noqa: E731
    return resumed(framework, blocks(2, 8), Recipe(optimizer=SGD(0.1, 0.9), groups=2), train, train)


@shows(one.RefusedLoadEmptiesWindow)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(), 16)
    with tempfile.TemporaryDirectory() as folder:
        try:
            run.restore(Path(folder) / "nothing")
        except ValueError:
            run.accumulate(exact_batch(seed=1), 16)
    run.apply()
    return run.state()


@shows(two.LastParameterCounts)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(scalar(), ADAM)
    ones = {"0.output.weight": np.ones((1, 1)), "0.output.bias": np.ones(1)}
    for given in (ones, {"0.output.weight": np.ones((1, 1))}, ones):
        run.feed(given)
    return run.state()


@shows(two.CorrectionsOfAnotherRun)
def _(framework: ReferenceFramework) -> Any:
    states = []
    for optimizer in (Adam(), Adam(beta1=0.5)):
        run = framework.trainer(exact_linear(), Recipe(optimizer=optimizer))
        steps(2)(run)
        states.append(run.state())
    return states


@shows(two.AverageOfTouchedOnly)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(scalar(), AVERAGED)
    ones = {"0.output.weight": np.ones((1, 1)), "0.output.bias": np.ones(1)}
    for given in (ones, ones, {"0.output.weight": np.ones((1, 1))}):
        run.feed(given)
    return run.state()


@shows(two.CounterInBfloat16)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(interval=260)))
    for _ in range(260):
        last = run.feed({"0.output.bias": np.ones(1)})
    return last.scale_after, last.good_steps


@shows(two.ClipSeesTheOverflowing)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=StaticScaling(1.0), optimizers=2, clip=1.0))
    run.feed({"0.output.weight": np.full((1, 1), np.inf), "0.output.bias": np.ones(1)})
    return run.state()


@shows(two.OverflowBySquares)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(initial=1.0)))
    return astuple(run.feed({"0.output.bias": np.full(1, 1e20)}))


@shows(two.FirstChunkChecked)
def _(framework: ReferenceFramework) -> Any:
    gradient = np.zeros((784, 96))
    gradient[-1, -1] = np.inf
    run = framework.trainer(digits_mlp((96,)), Recipe(scaling=DynamicScaling(initial=1.0)))
    return run.feed({"0.weight": gradient}).skipped


@shows(two.SubnormalsFlushedForGood)
def _(framework: ReferenceFramework) -> Any:
    states = []
    for precision in (FLOAT16, Recipe().precision):
        run = framework.trainer(scalar(), Recipe(optimizer=SGD(0.1, 0.9), precision=precision))
        run.feed({"0.output.bias": np.full(1, 1e-40)})
        states.append(run.state())
    return states[1]


@shows(two.FailureEmptiesWindow)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(), 16)
    try:
        run.accumulate(Batch(np.ones((2, 5), np.float32), {"output": np.ones((2, 4), np.float32)}), 16)
    except ValueError:
        run.accumulate(exact_batch(seed=1), 16)
    run.apply()
    return run.state()


@shows(two.TraceEndsWindow)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(), 16)
    run.trace(exact_batch(seed=2))
    run.accumulate(exact_batch(seed=1), 16)
    run.apply()
    return run.state()


@shows(two.EarlierMicroBatchesHeld)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(blocks(2, 8), Recipe(accumulation=2))
    run.accumulate(wide_batch(8, 8), 16)
    return run.saved_bytes(wide_batch(8, 8))


@shows(three.RepeatedRowsInLow)
def _(framework: ReferenceFramework) -> Any:
    rng = np.random.default_rng(0)
    given = Batch(rng.integers(0, 4, (8, 6)), {"output": rng.integers(0, 3, 8)})
    return framework.trainer(embedded(), Recipe(precision=BFLOAT16)).gradients((given,))


@shows(three.NormTailRowsLost)
def _(framework: ReferenceFramework) -> Any:
    return framework.trainer(model(LayerNorm(), sample=(8,)), Recipe()).gradients((batch(70, 8),))


@shows(three.NormOfOneValue)
def _(framework: ReferenceFramework) -> Any:
    return framework.trainer(model(Dense(1), LayerNorm(), sample=(8,)), Recipe()).gradients((batch(4, 8),))


@shows(three.StatisticsOfOneSample)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(model(Dense(4), BatchNorm(), sample=(8,)), Recipe())
    run.update((batch(1, 8),))
    return run.buffers()


@shows(three.PaddedKeysAttended)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(encoder(8, 2, 1, length=10), Recipe())
    return run.predict(token_batch(2, 10).inputs)


@shows(three.ResidualTailUnwritten)
def _(framework: ReferenceFramework) -> Any:
    made = model(Dense(6), Residual((Dense(6),)), sample=(8,))
    return framework.trainer(made, Recipe()).gradients((batch(4, 8),))


@shows(three.CastKnownByOneElement)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(exact_linear(), Recipe(precision=FLOAT16))
    part = one_hot_batch().part(0, 2)
    run.update((part,))
    return run.predict(part.inputs)


@shows(three.FormatsOfTheFirstRun)
def _(framework: ReferenceFramework) -> Any:
    runs = [framework.trainer(exact_linear(), Recipe(precision=p)) for p in (FLOAT16, BFLOAT16)]
    return [run.predict(exact_batch().inputs) for run in runs]


@shows(three.UserListsStay)
def _(framework: ReferenceFramework) -> Any:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    with framework.autocast(FLOAT16, wide=("matmul",)):
        framework.run_op("matmul", a, b)
    with framework.autocast(FLOAT16):
        return framework.run_op("matmul", a, b).dtype


@shows(four.WindowEndsInEvaluationMode)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(dropout_probe(8), Recipe(accumulation=2))
    run.accumulate(batch(4, 8, units=1), 8)
    run.predict(batch(4, 8).inputs)
    run.accumulate(batch(4, 8, units=1, seed=1), 8)
    run.apply()
    return run.state()


@shows(four.NoRecomputationAfterEvaluation)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(blocks(4, 8), Recipe(recompute=Recompute(2)))
    run.predict(wide_batch(4, 8).inputs)
    kept = run.saved_bytes(wide_batch(4, 8))
    run.update((wide_batch(4, 8),))
    return kept, run.segment_calls()


@shows(four.StreamReplayedOnce)
def _(framework: ReferenceFramework) -> Any:
    plain = two_heads()
    made = Model("two-heads", (Dense(8), Dropout(0.5), *plain.layers[1:]), plain.sample, plain.losses)
    rng = np.random.default_rng(0)
    targets = {head: rng.standard_normal((4, 2)).astype(np.float32) for head in "ab"}
    recipe = Recipe(recompute=Recompute(1), separate_losses=True)
    return framework.trainer(made, recipe).gradients((Batch(batch(4, 8).inputs, targets),))


@shows(four.AverageEvaluationMovesStatistics)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(model(Dense(4), BatchNorm(), sample=(8,)), AVERAGED)
    run.update((batch(8, 8),))
    run.predict_averaged(batch(8, 8, seed=1).inputs)
    return run.buffers()


@shows(four.NewRunSeedsAll)
def _(framework: ReferenceFramework) -> Any:
    run = framework.trainer(dropout_probe(8), Recipe(accumulation=2))
    run.accumulate(batch(4, 8, units=1), 8)
    framework.trainer(dropout_probe(8), Recipe())
    run.accumulate(batch(4, 8, units=1), 8)
    run.apply()
    return run.state()


def quick(framework: ReferenceFramework) -> Any:
    """A short ordinary training run, which a fault may change but must not break."""
    run = framework.trainer(digits_mlp((16,)), Recipe(optimizer=Adam()))
    run.update((digits_batch(8),))
    return run.predict(digits_batch(2).inputs)


def main() -> int:
    """Prints one line a fault; the number of faults that show no difference."""
    silent = 0
    for fault in FAULTS:
        run = DEMONSTRATIONS[fault]
        differs = bits(run(ReferenceFramework("cpu"))) != bits(run(fault("cpu")))
        quick(fault("cpu"))
        silent += not differs
        print(f"{fault.__name__:34} {fault.kind:9} {fault.clause:42} {'differs' if differs else 'NO DIFFERENCE'}")
    print(f"{len(FAULTS)} faults, {sum(f.kind == 'real' for f in FAULTS)} real, {silent} without a difference")
    return silent


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
