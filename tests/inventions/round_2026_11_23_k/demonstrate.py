"""Shows of every fault of this folder that it changes what a plain run gives."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixtures import layers as fl
from fixtures.data import exact_batch, one_hot_batch
from fixtures.model import Batch, Model
from fixtures.models import dropout_probe, embedded, exact_linear, scalar, two_heads
from fixtures.recipe import (
    BFLOAT16,
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
from tests.inventions.round_2026_11_23_k import FAULTS, faults_k_1, faults_k_2, faults_k_3, faults_k_4

Run = Callable[[Any], Any]
SHOWN: dict[str, Callable[[], tuple[Any, Any]]] = {}
MODULES = (faults_k_1, faults_k_2, faults_k_3, faults_k_4)


def shows(name: str) -> Callable[[Run], Run]:
    """Makes of a run on a framework one on the reference and on the fault of that name, which returns both results."""

    def made(run: Run) -> Run:
        SHOWN[name] = lambda: (run(ReferenceFramework("cpu")), run(FAULTS[name]("cpu")))
        return run

    return made


def model(*body: Any, sample: tuple[int, ...], units: int = 2) -> Model:
    return Model("small", (*body, fl.Heads((fl.Head("output", units),))), sample, (("output", "squared_error"),))


def batch(count: int, *sample: int, units: int = 2, factor: float = 1.0) -> Batch:
    rng = np.random.default_rng(count)
    x = factor * rng.standard_normal((count, *sample))
    return Batch(x.astype(np.float32), {"output": rng.standard_normal((count, units)).astype(np.float32)})


def outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__


@shows("TiedMaximum")
def _(f: Any) -> Any:
    made = model(fl.Convolution(2, padding=0), fl.MaxPool(2), fl.Flatten(), sample=(6, 6, 1))
    flat = Batch(np.ones((2, 6, 6, 1), np.float32), {"output": np.ones((2, 2), np.float32)})
    return f.trainer(made, Recipe()).gradients((flat,))


@shows("StridedRemainder")
def _(f: Any) -> Any:
    made = model(fl.Convolution(2), fl.Convolution(2, stride=2, padding=0), fl.Flatten(), sample=(6, 6, 1))
    return f.trainer(made, Recipe()).gradients((batch(2, 6, 6, 1),))


@shows("OddRowSpill")
def _(f: Any) -> Any:
    run = f.trainer(model(fl.Dense(5), fl.LayerNorm(), sample=(3,)), Recipe(precision=FLOAT16))
    return run.predict(batch(3, 3).inputs)


@shows("CubeOverflow")
def _(f: Any) -> Any:
    recipe = Recipe(precision=FLOAT16, scaling=StaticScaling(1.0))
    run = f.trainer(model(fl.Dense(4), fl.Activation("gelu"), sample=(3,)), recipe)
    return run.update((batch(4, 3, factor=60.0),)).skipped


@shows("HalvesAway")
def _(f: Any) -> Any:
    with f.autocast(BFLOAT16):
        return f.run_op("matmul", np.array([[1.0 + 2.0**-8]], np.float32), np.ones((1, 1), np.float32)).value


@shows("RatioForMask")
def _(f: Any) -> Any:
    run = f.trainer(model(fl.Dense(6), fl.Dropout(0.5), sample=(3,)), Recipe())
    return run.gradients((batch(2, 3, factor=0.0),))


@shows("MaskTail")
def _(f: Any) -> Any:
    return f.trainer(model(fl.Dense(7), fl.Dropout(0.5), sample=(3,)), Recipe()).gradients((batch(5, 3),))


@shows("LastRowFrozen")
def _(f: Any) -> Any:
    words = Batch(np.full((2, 6), 15), {"output": np.array([0, 1])})
    return f.trainer(embedded(), Recipe()).gradients((words,))


@shows("UnclearedWindow")
def _(f: Any) -> Any:
    run = f.trainer(scalar(), Recipe(scaling=DynamicScaling(), accumulation=2))
    one, bad = {"0.output.weight": np.ones((1, 1))}, {"0.output.weight": np.full((1, 1), np.inf)}
    return run.feed(one, bad).skipped, run.accumulator(), run.feed(one, one).skipped


@shows("SquaresVanish")
def _(f: Any) -> Any:
    run = f.trainer(scalar(), Recipe(precision=Precision("O3", "float16"), clip=2.0**-15))
    return run.feed({"0.output.weight": np.full((1, 1), 2.0**-13)}).gradient_norm


@shows("LossLeftScaled")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(), accumulation=2))
    return [run.accumulate(part, 8) for part in exact_batch().into(2)]


@shows("AveragedUnscalesTwice")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(scaling=StaticScaling(8.0), average=0.5))
    run.update((exact_batch(),))
    return run.parameters()


@shows("AbandonedStays")
def _(f: Any) -> Any:
    run = f.trainer(scalar(), Recipe())
    one = {"0.output.weight": np.ones((1, 1))}
    run.feed(one, abandon=True)
    run.feed(one)
    return run.parameters()


@shows("NothingIsOverflow")
def _(f: Any) -> Any:
    run = f.trainer(scalar(), Recipe(scaling=DynamicScaling(), optimizers=2))
    update = run.feed({"0.output.weight": np.ones((1, 1))})
    return update.scale_after, update.good_steps


@shows("SecondLossAlone")
def _(f: Any) -> Any:
    rng = np.random.default_rng(3)
    x, t = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (4, 2)))
    run = f.trainer(two_heads(), Recipe(separate_losses=True, accumulation=2))
    run.update(Batch(x, {"a": t, "b": t}).into(2))
    return run.parameters()


@shows("ScaledInFloat32")
def _(f: Any) -> Any:
    heads = fl.Heads((fl.Head("output", 1, "float64"),))
    wide = Model("wide", (heads,), (2,), (("output", "squared_error"),))
    data = Batch(batch(3, 2).inputs, {"output": np.ones((3, 1))})
    return f.trainer(wide, Recipe(scaling=StaticScaling(4.0))).gradients((data,))


@shows("EmptyUncounted")
def _(f: Any) -> Any:
    tokens = Model(
        "tokens",
        (fl.Dropout(0.5), fl.Heads((fl.Head("output", 3),))),
        (2, 4),
        (("output", "cross_entropy"),),
        token_level=True,
    )
    rng = np.random.default_rng(5)
    x, labels = rng.standard_normal((2, 2, 4)).astype(np.float32), np.zeros((2, 2), np.int64)
    parts = Batch(x, {"output": labels}, np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)).into(2)
    run = f.trainer(tokens, Recipe(accumulation=2))
    return len(run.update(parts).micro_losses), run.random_state()


@shows("RememberedMask")
def _(f: Any) -> Any:
    data = Batch(np.ones((4, 64), np.float32), {"output": np.ones((4, 1), np.float32)})
    return [f.trainer(dropout_probe(rate=rate), Recipe()).gradients((data,)) for rate in (0.1, 0.9)]


def resumed(f: Any, made: Model, recipe: Recipe, before: Callable[[Any], Any]) -> Any:
    """A new run that has loaded what another saved after `before`."""
    first, second = f.trainer(made, recipe), f.trainer(made, recipe)
    before(first)
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    return second


@shows("RateFromRate")
def _(f: Any) -> Any:
    recipe = Recipe(schedule=Steps((1,), (1.0, 0.5)))
    run = resumed(f, exact_linear(), recipe, lambda first: first.update((exact_batch(),)))
    return run.update((exact_batch(),)).learning_rate


@shows("MaterialisingStep")
def _(f: Any) -> Any:
    run = resumed(f, exact_linear(), Recipe(Adam()), lambda first: None)  # noqa: ARG005
    run.update((exact_batch(),))
    return run.parameters()


@shows("StreamNotRewound")
def _(f: Any) -> Any:
    run = f.trainer(dropout_probe(), Recipe())
    data = Batch(np.ones((2, 64), np.float32), {"output": np.ones((2, 1), np.float32)})
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.update((data,))
        run.restore(Path(folder))
    return run.random_state(), run.update((data,)).loss


@shows("ClearsBeforeReading")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(4), 8)
    return outcome(lambda: run.restore(Path("no-such-folder"))), run.accumulator()


@shows("SavedAlready")
def _(f: Any) -> Any:
    recipe = Recipe(accumulation=2)
    first, second = f.trainer(exact_linear(), recipe), f.trainer(exact_linear(), recipe)
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        first.accumulate(exact_batch(4), 8)
        first.save(Path(folder))
        second.restore(Path(folder))
    return second.accumulator()


@shows("SaveUnscales")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(scaling=DynamicScaling(), accumulation=2))
    run.accumulate(exact_batch(4), 8)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
    return run.accumulator()


@shows("CastByStep")
def _(f: Any) -> Any:
    run, data = f.trainer(exact_linear(), Recipe(precision=FLOAT16)), exact_batch()
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.update((data,))
        run.predict(data.inputs)
        run.restore(Path(folder))
    run.update((one_hot_batch(),))
    return run.predict(data.inputs)


@shows("AverageKeepsFirstBuffers")
def _(f: Any) -> Any:
    run = f.trainer(model(fl.Dense(3), fl.BatchNorm(), sample=(3,)), Recipe(average=0.5))
    run.update((batch(6, 3),))
    return run.predict_averaged(batch(2, 3).inputs)


@shows("AverageRoundedByUse")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(SGD(1e-3), Precision("O2", "float16"), average=0.9))
    run.update((exact_batch(),))
    run.predict_averaged(exact_batch().inputs)
    return run.optimizer_state()


@shows("AverageOfFirstOptimizer")
def _(f: Any) -> Any:
    run = f.trainer(exact_linear(), Recipe(average=0.5, optimizers=2))
    run.update((exact_batch(),))
    return run.optimizer_state()


@shows("DecayLagsBehind")
def _(f: Any) -> Any:
    recipe = Recipe(AdamW(0.1, weight_decay=0.5), schedule=Steps((1,), (1.0, 0.125)))
    run = f.trainer(exact_linear(), recipe)
    for _ in range(2):
        run.update((exact_batch(),))
    return run.parameters()


@shows("UnevenSegmentsRaise")
def _(f: Any) -> Any:
    run = f.trainer(model(*[fl.Dense(3)] * 3, sample=(3,)), Recipe(recompute=Recompute(2)))
    return outcome(lambda: run.update((batch(2, 3),)).loss)


@shows("ReplaysFirstMicroBatch")
def _(f: Any) -> Any:
    recipe = Recipe(accumulation=2, recompute=Recompute(1))
    run = f.trainer(model(fl.Dense(8), fl.Dropout(0.5), sample=(3,)), recipe)
    return run.gradients(batch(4, 3).into(2))


@shows("InnerReplaysOuter")
def _(f: Any) -> Any:
    body = (fl.Dense(8), fl.Dropout(0.5), fl.Dense(8), fl.Dropout(0.5))
    run = f.trainer(model(*body, sample=(3,)), Recipe(recompute=Recompute(1, depth=2)))
    return run.gradients((batch(4, 3),))


def same(a: Any, b: Any) -> bool:
    """Whether two results are alike, bit for bit; NaN is like NaN."""
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def main() -> int:
    """Prints a line for each fault; 1 if one shows no difference or has no run."""
    written = {name: cls for name, cls in FAULTS.items() if cls.__module__ in {m.__name__ for m in MODULES}}
    failed = 0
    for name, cls in written.items():
        different = name in SHOWN and not same(*SHOWN[name]())
        failed += not different
        print(f"{'differs' if different else 'NO DIFFERENCE':<14}{cls.kind:<10}{cls.clause:<46}{name}")
    real = sum(cls.kind == "real" for cls in written.values())
    print(f"{len(written)} faults, {real} real, {len(written) - real} invented; {failed} without a difference")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
