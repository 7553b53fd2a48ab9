"""Shows for each fault of this folder a plain run that it changes: one line a fault; fails where there is none."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.data import exact_batch, sincos_batch, token_batch, wide_batch
from fixtures.layers import (
    Activation,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Head,
    Heads,
    LayerNorm,
    MaxPool,
)
from fixtures.model import Batch, Model
from fixtures.models import digits_mlp, dropout_probe, exact_linear, exact_stack, sincos
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    SGD,
    Adam,
    DynamicScaling,
    Precision,
    Recipe,
    Recompute,
    Steps,
)
from frameworks.reference.framework import ReferenceFramework
from tests.inventions.round_2026_11_23_h import faults_h_1 as one
from tests.inventions.round_2026_11_23_h import faults_h_2 as two
from tests.inventions.round_2026_11_23_h import faults_h_3 as three

Run = Callable[[Any], Any]
WEIGHT, BIAS = "0.output.weight", "0.output.bias"


def model(*layers: Any, sample: tuple[int, ...], units: int = 2, integers: bool = False) -> Model:
    heads = Heads((Head("output", units),))
    return Model("shown", (*layers, heads), sample, (("output", "squared_error"),), integer_inputs=integers)


def batch(*shape: int, units: int = 2, size: float = 1.0) -> Batch:
    rng = np.random.default_rng(7)
    inputs = (size * rng.standard_normal(shape)).astype(np.float32)
    return Batch(inputs, {"output": rng.standard_normal((shape[0], units)).astype(np.float32)})


def gradients(m: Model, b: Batch, recipe: Recipe = Recipe()) -> Run:
    return lambda framework: framework.trainer(m, recipe).gradients((b,))


def exact(framework: Any, **recipe: Any) -> Any:
    return framework.trainer(exact_linear(), Recipe(**recipe))


def filled(value: float) -> dict[str, Any]:
    return {WEIGHT: np.full((8, 4), value), BIAS: np.full(4, value)}


def ties() -> Batch:
    return Batch(np.ones((2, 4, 4, 1), np.float32), {"output": np.zeros((2, 2), np.float32)})


def many_ids(framework: Any) -> Any:
    b = Batch(np.zeros((512, 4), np.int64), {"output": np.ones((512, 2), np.float32)})
    m = model(Embedding(3, 2), Flatten(), sample=(4,), integers=True)
    return framework.trainer(m, Recipe(precision=Precision("O2", "float16"))).gradients((b,))


def attention(framework: Any) -> Any:
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 4, 8)
    formats = []
    for precision in (FLOAT16, BFLOAT16):
        with framework.autocast(precision):
            formats.append(framework.run_op("attention", x, x, x).dtype)
    return formats


def nested(framework: Any) -> Any:
    x = np.ones((4, 8), np.float32)
    with framework.autocast(FLOAT16, wide=("matmul",)), framework.autocast(FLOAT16):
        return framework.run_op("matmul", x, x.T).dtype


def refused(framework: Any, folder: Path) -> Any:
    other = exact(framework, clip=1.0)
    other.update((exact_batch(),))
    other.save(folder)
    run = exact(framework)
    try:
        run.restore(folder)
    except ValueError:
        return run.parameters()
    return "no error"


def long_run(framework: Any, folder: Path) -> Any:
    run = exact(framework, optimizer=Adam())
    for _ in range(257):
        run.feed(filled(1.0))
    run.save(folder)
    run.restore(folder)
    return run.optimizer_state()


def saved_window(framework: Any, folder: Path) -> Any:
    run = exact(framework, accumulation=2)
    run.accumulate(exact_batch(4), 8)
    run.save(folder)
    return run.accumulator()


def saved_then_trained(framework: Any, folder: Path) -> Any:
    run = exact(framework, optimizer=Adam())
    run.feed(filled(1.0))
    run.save(folder)
    run.feed(filled(0.5))
    run.restore(folder)
    return run.optimizer_state()


def saved_over(framework: Any, folder: Path) -> Any:
    longer, shorter = exact(framework), exact(framework)
    for _ in range(3):
        longer.feed(filled(1.0))
    longer.save(folder)
    shorter.feed(filled(-1.0))
    shorter.save(folder)
    longer.restore(folder)
    return longer.state()


def back_to_the_start(framework: Any, folder: Path) -> Any:
    run = exact(framework, optimizer=Adam())
    run.save(folder)
    run.feed(filled(1.0))
    run.restore(folder)
    return run.state()


def asked_inside(framework: Any) -> Any:
    run = exact(framework, accumulation=2)
    first, second = exact_batch(8).into(2)
    run.accumulate(first, 8)
    run.gradients((exact_batch(4, seed=3),))
    run.accumulate(second, 8)
    return run.apply().loss


def traced(framework: Any) -> Any:
    run = framework.trainer(dropout_probe(), Recipe())
    b = batch(2, 64, units=1)
    run.trace(b)
    return run.state()


def after_an_error(framework: Any) -> Any:
    run = exact(framework, accumulation=2)
    first, second = exact_batch(8).into(2)
    run.accumulate(first, 8)
    try:
        run.accumulate(exact_batch(4, inputs=7), 8)
    except Exception:
        run.accumulate(second, 8)
    return run.apply().loss, run.parameters()


def two_losses(framework: Any) -> Any:
    heads = Heads((Head("a", 2), Head("b", 2)))
    m = Model("two", (Dense(8), Dropout(0.5), heads), (8,), (("a", "squared_error"), ("b", "squared_error")))
    b = batch(4, 8)
    both = Batch(b.inputs, {"a": b.targets["output"], "b": b.targets["output"]})
    run = framework.trainer(m, Recipe(recompute=Recompute(1), separate_losses=True))
    run.update((both,))
    return run.state()


def large_sum(framework: Any) -> Any:
    return exact(framework, scaling=DynamicScaling(initial=1.0)).feed(filled(3e37)).skipped


def grown(framework: Any) -> Any:
    return exact(framework, scaling=DynamicScaling(initial=8.0, interval=1)).update((exact_batch(),)).loss


def last_one_missing(framework: Any) -> Any:
    run = framework.trainer(exact_stack(), Recipe())
    shapes = {name: a.shape for name, a in run.parameters().items()}
    run.feed({name: np.ones(shape) for name, shape in list(shapes.items())[:-1]})
    return run.parameters()


def norm_at_o2(framework: Any) -> Any:
    run = exact(framework, precision=Precision("O2", "bfloat16"))
    return run.feed({WEIGHT: np.full((8, 4), 1.0), BIAS: np.full(4, 1.0)}).gradient_norm


def given_up(framework: Any) -> Any:
    run = exact(framework, scaling=DynamicScaling(initial=4.0))
    run.feed(filled(np.inf), abandon=True)
    return run.feed(filled(1.0)).skipped


def one_overflows(framework: Any) -> Any:
    run = exact(framework, scaling=DynamicScaling(initial=4.0), optimizers=2, clip=1.0)
    run.feed({WEIGHT: np.full((8, 4), np.inf), BIAS: np.full(4, 1.0)})
    return run.parameters()


def late_infinity(framework: Any) -> Any:
    run = framework.trainer(digits_mlp((128,)), Recipe(scaling=DynamicScaling(initial=4.0)))
    gradient = np.zeros((784, 128))
    gradient[-1, -1] = np.inf
    return run.feed({"0.weight": gradient}).skipped


def rate_of_zero(framework: Any) -> Any:
    run = exact(framework, optimizer=Adam(), schedule=Steps((1,), (0.0, 1.0)))
    run.feed(filled(1.0))
    return run.optimizer_state()


def wide_average(framework: Any) -> Any:
    run = framework.trainer(sincos(4), Recipe(average=0.75))
    for start in range(2):
        run.update((sincos_batch(8, seed=start),))
    return run.optimizer_state()


def two_groups(framework: Any) -> Any:
    run = exact(framework, groups=2, average=0.5)
    run.feed(filled(1.0))
    run.feed(filled(1.0))
    return run.optimizer_state()


def nothing_counts(framework: Any) -> Any:
    m = Model(
        "tokens", (Embedding(4096, 4), Heads((Head("output", 4),))), (16,), (("output", "cross_entropy"),), True, True
    )
    b = token_batch(2)
    empty = Batch(b.inputs, b.targets, np.zeros_like(b.mask))
    return framework.trainer(m, Recipe(accumulation=2)).update((b, empty)).loss


def with_folder(run: Callable[[Any, Path], Any]) -> Run:
    def shown(framework: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return run(framework, Path(folder))

    return shown


SIGMOID = Batch(np.full((2, 4), -300.0, np.float32), {"output": np.zeros((2, 2), np.float32)})
WIDE_IMAGE = model(Convolution(2), Convolution(2), Flatten(), sample=(3, 6, 1))

SHOWN: dict[Any, Run] = {
    one.PaddedRowsInTheVariance: gradients(model(Dense(5), LayerNorm(), sample=(3,)), batch(4, 3)),
    one.EveryTieGetsTheGradient: gradients(
        model(Convolution(1, 1, 1, 0), MaxPool(2), Flatten(), sample=(4, 4, 1)), ties()
    ),
    one.CancellationInGelu: gradients(
        model(Dense(8), Activation("gelu"), sample=(8,)), batch(8, 8, size=2.0), Recipe(precision=BFLOAT16)
    ),
    one.SigmoidGradientOverflows: gradients(model(Dense(4), Activation("sigmoid"), sample=(4,)), SIGMOID),
    one.HeightTakenForWidth: gradients(WIDE_IMAGE, batch(2, 3, 6, 1)),
    one.BatchNormReducesInHalf: gradients(
        model(Dense(4), BatchNorm(), sample=(4,)), batch(16, 4), Recipe(precision=FLOAT16)
    ),
    one.RowsAddedUpInHalf: many_ids,
    one.CompiledForTheFirstFormat: attention,
    one.ListsAreInherited: nested,
    two.WeightsBeforeTheRest: with_folder(refused),
    two.CountsSavedInBfloat16: with_folder(long_run),
    two.SaveMakesAnEmptyStep: with_folder(saved_window),
    two.StepCountsWrittenLater: with_folder(saved_then_trained),
    two.NewerCheckpointStays: with_folder(saved_over),
    two.ZeroMomentsAreLeftOut: with_folder(back_to_the_start),
    two.GradientsJoinTheLoss: asked_inside,
    two.TraceGivesTheMaskBack: traced,
    two.ErrorEmptiesTheWindow: after_an_error,
    two.ReplayedOnlyOnce: two_losses,
    three.OverflowOfTheCheckItself: large_sum,
    three.LossByTheNextScale: grown,
    three.LastLaunchIsLost: last_one_missing,
    three.PartialNormsInLowPrecision: norm_at_o2,
    three.VerdictOutlivesTheUpdate: given_up,
    three.SkippedGradientsAreClippedBy: one_overflows,
    three.FirstBlockIsChecked: late_infinity,
    three.RateOfZeroIsNoUpdate: rate_of_zero,
    three.AverageOfWideWeightsIsNarrow: wide_average,
    three.AverageBetweenGroups: two_groups,
    three.EmptyMicroBatchSpoilsTheLoss: nothing_counts,
}


def bits(value: Any) -> Any:
    """A value that is equal only to one of the same bits and formats."""
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [bits(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    return repr(value)


def ordinary(framework: Any) -> Any:
    """A plain run without anything unusual, which every fault leaves as it is or at least running."""
    run = framework.trainer(exact_stack(), Recipe(optimizer=SGD(0.125)))
    return [run.update((exact_batch(),)).loss for _ in range(2)], run.predict(wide_batch(4, 8).inputs)


def main() -> int:
    missing = 0
    for module in (one, two, three):
        listed = {value for value in vars(module).values() if hasattr(value, "kind") and hasattr(value, "clause")}
        assert listed <= SHOWN.keys(), listed - SHOWN.keys()
    for faulty, run in SHOWN.items():
        seen = bits(run(ReferenceFramework("cpu"))) != bits(run(faulty("cpu")))
        same = bits(run(ReferenceFramework("cpu"))) == bits(run(ReferenceFramework("cpu")))
        plain = bits(ordinary(ReferenceFramework("cpu"))) == bits(ordinary(faulty("cpu")))
        missing += not (seen and same)
        verdict = "differs" if seen and same else "NO DIFFERENCE"
        print(f"{faulty.__name__:32} {verdict}; plain run {'kept' if plain else 'moved'}")
    real = sum(faulty.kind == "real" for faulty in SHOWN)
    print(f"{len(SHOWN)} faults ({real} real, {len(SHOWN) - real} invented), {missing} without a difference")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
