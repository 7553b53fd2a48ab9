"""Shows that each fault changes what a user can observe: one small run each, by the reference and by the fault."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch, vector_batch
from fixtures.layers import Activation, Dense, Dropout, Head, Heads
from fixtures.model import Batch, Model
from fixtures.models import (
    blocks,
    digits_mlp,
    dropout_probe,
    embedded,
    encoder,
    exact_linear,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    FLOAT16,
    SGD,
    Adam,
    Aware,
    DynamicScaling,
    Offload,
    Precision,
    Ranks,
    Recipe,
    Recompute,
    Steps,
)
from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_24_n import faults_n_1, faults_n_2

_MODULES = (faults_n_1.__name__, faults_n_2.__name__)
Seen = Mapping[str, Array]
Show = Callable[[ReferenceFramework], Seen]

SHOWS: dict[str, Show] = {}
"""The run that shows a fault, by the fault's name."""


def shows(name: str) -> Callable[[Show], Show]:
    """Enters the run that shows the fault of this name."""

    def enter(show: Show) -> Show:
        SHOWS[name] = show
        return show

    return enter


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="show-"))


def _probe(seed: int = 0) -> Batch:
    rng = np.random.default_rng([seed, 7])
    return Batch(rng.standard_normal((4, 64)).astype(np.float32), {"output": np.ones((4, 1), np.float32)})


@shows("TokenIdsOfSixteenBits")
def _wide_ids(framework: ReferenceFramework) -> Seen:
    ids = np.array([[5, 33_000, 39_999]])
    run = framework.trainer(embedded(40_000, 2, 3), Recipe())
    return run.gradients((Batch(ids, {"output": np.array([1])}),))


@shows("CrossEntropyShiftsByPositiveMaximum")
def _low_logits(framework: ReferenceFramework) -> Seen:
    model = digits_mlp((8,))
    weights = model.weights(0)
    weights["2.output.bias"] = np.full_like(weights["2.output.bias"], -2000.0)
    return {"loss": np.array(framework.trainer(model, Recipe(), weights).update((digits_batch(4),)).loss)}


@shows("LayerNormAddsEpsilonToDeviation")
def _norms(framework: ReferenceFramework) -> Seen:
    return framework.trainer(encoder(embedded=False, blocks=1), Recipe()).predict(vector_batch(2).inputs)


@shows("LastRowOfTableIsPadding")
def _last_row(framework: ReferenceFramework) -> Seen:
    ids = np.array([[0, 3, 15, 15, 2, 1]])
    return framework.trainer(embedded(), Recipe()).gradients((Batch(ids, {"output": np.array([1])}),))


@shows("SeedOfThirtyTwoBits")
def _large_seed(framework: ReferenceFramework) -> Seen:
    weights = dropout_probe().weights(0)
    return framework.trainer(dropout_probe(), Recipe(seed=2**32 + 5), weights).gradients((_probe(),))


@shows("DropoutBeginsAgainAfter256Draws")
def _many_draws(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(dropout_probe(), Recipe())
    for _ in range(256):
        run.gradients((_probe(),))
    return run.gradients((_probe(),))


@shows("FirstMasksAreSharedByRuns")
def _second_seed(framework: ReferenceFramework) -> Seen:
    framework.trainer(dropout_probe(), Recipe(seed=1)).gradients((_probe(),))
    return framework.trainer(dropout_probe(), Recipe(seed=2)).gradients((_probe(),))


@shows("MomentumKeepsItsFormerRate")
def _scheduled_momentum(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.125, 0.5), schedule=Steps((2,), (1.0, 0.25))))
    for _ in range(3):
        run.update((exact_batch(),))
    return run.parameters()


@shows("AverageSkipsParametersWithoutGradient")
def _one_head(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(two_heads(), Recipe(SGD(0.125), average=0.5))
    rng = np.random.default_rng(1)
    x, t = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (4, 2)))
    for heads in (("a", "b"), ("a", "b"), ("a",)):
        run.update((Batch(x, dict.fromkeys(heads, t)),))
    return run.optimizer_state()


@shows("AveragedEvaluationRoundsFloat64Weights")
def _average_of_float64(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(sincos(4), Recipe(SGD(0.01), average=0.9))
    batch = sincos_batch(8)
    run.update((batch,))
    run.predict_averaged(batch.inputs)
    return run.parameters()


@shows("FirstRateAfterLoadIsTheBaseRate")
def _rate_after_load(framework: ReferenceFramework) -> Seen:
    run, folder = framework.trainer(exact_linear(), Recipe(SGD(0.125), schedule=Steps((1,), (1.0, 0.5)))), _folder()
    run.update((exact_batch(),))
    run.save(folder)
    run.restore(folder)
    run.update((exact_batch(),))
    return run.parameters()


@shows("PredictionsKeepWeightsFromBeforeLoad")
def _predict_after_load(framework: ReferenceFramework) -> Seen:
    run, folder, batch = framework.trainer(exact_linear(), Recipe()), _folder(), exact_batch()
    run.save(folder)
    run.update((batch,))
    run.predict(batch.inputs)
    run.restore(folder)
    return run.predict(batch.inputs)


@shows("LoadRoundsCountsToModelFormat")
def _count_after_load(framework: ReferenceFramework) -> Seen:
    run, folder = framework.trainer(scalar(), Recipe(Adam(), Precision("O2", "bfloat16"))), _folder()
    for _ in range(257):
        run.update((exact_batch(1, 1, 1),))
    run.save(folder)
    run.restore(folder)
    run.update((exact_batch(1, 1, 1),))
    return run.optimizer_state()


@shows("SaveKeepsWhatAnEarlierOneLeft")
def _second_save(framework: ReferenceFramework) -> Seen:
    recipe, folder, batch = Recipe(SGD(0.125), accumulation=2), _folder(), exact_batch()
    run = framework.trainer(exact_linear(), recipe)
    run.accumulate(batch, 16)
    run.save(folder)
    run.accumulate(batch, 16)
    run.apply()
    run.save(folder)
    run.restore(folder)
    return run.state()


@shows("SavedScaleIsWhole")
def _fractional_scale(framework: ReferenceFramework) -> Seen:
    run, folder = framework.trainer(exact_linear(), Recipe(scaling=DynamicScaling(1.5))), _folder()
    run.update((exact_batch(),))
    run.save(folder)
    run.restore(folder)
    return run.scaler_state()


@shows("GradientsCountTheOpenWindowsItems")
def _inside_a_window(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(), 16)
    return run.gradients((exact_batch(4),))


@shows("SecondBackwardDrawsNewMasks")
def _two_backward_passes(framework: ReferenceFramework) -> Seen:
    heads = Heads((Head("a", 2), Head("b", 2)))
    layers = (Dense(16), Dropout(0.5), Activation("tanh"), heads)
    model = Model("two-losses", layers, (8,), (("a", "squared_error"), ("b", "squared_error")))
    rng = np.random.default_rng(1)
    x, t = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (8, 2)))
    run = framework.trainer(model, Recipe(separate_losses=True, recompute=Recompute(1)))
    return run.gradients((Batch(x, {"a": t, "b": t}),))


@shows("OverflowAtTheFloorKeepsTheCount")
def _at_the_floor(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(scaling=DynamicScaling(2.0**-14, interval=4)))
    for value in (1.0, np.inf):
        run.feed({"0.output.weight": np.full((1, 1), value)})
    return run.scaler_state()


@shows("RangesFreezeBySkippedUpdatesToo")
def _freezes(framework: ReferenceFramework) -> Seen:
    model = digits_mlp((8,))
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(2.0**10), quantization=Aware(freeze=2)))
    run.update((digits_batch(4),))
    run.feed({"0.bias": np.full(8, np.inf)})
    run.update((digits_batch(4, 40),))
    return run.buffers()


@shows("SingleOutputIsNotCast")
def _one_unit(framework: ReferenceFramework) -> Seen:
    output = framework.trainer(dropout_probe(), Recipe(precision=FLOAT16)).predict(_probe().inputs)["output"]
    return {"format": np.array(output.dtype.name)}


@shows("InnerScopeInheritsUserLists")
def _inner_lists(framework: ReferenceFramework) -> Seen:
    ones = np.ones((2, 2), np.float32)
    with framework.autocast(FLOAT16, wide=("matmul",)), framework.autocast(FLOAT16):
        return {"format": np.array(framework.run_op("matmul", ones, ones).dtype)}


@shows("LeavingAnEqualScopeClosesTheOuterOne")
def _equal_scopes(framework: ReferenceFramework) -> Seen:
    ones = np.ones((2, 2), np.float32)
    with framework.autocast(FLOAT16):
        with framework.autocast(FLOAT16):
            pass
        return {"format": np.array(framework.run_op("matmul", ones, ones).dtype)}


@shows("RunsShareTheOffloadFolder")
def _two_offloading_runs(framework: ReferenceFramework) -> Seen:
    recipe = Recipe(Adam(), offload=Offload(("optimizer",), "disk", str(_folder())))
    first, second = (framework.trainer(exact_linear(), recipe) for _ in range(2))
    first.update((exact_batch(),))
    second.update((exact_batch(seed=1),))
    return first.optimizer_state()


@shows("SmallParametersCountOncePerRank")
def _small_parameters(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(scalar(), Recipe(SGD(0.125), clip=0.5, ranks=Ranks(2, "full")))
    return {"norm": np.array(run.update((exact_batch(4, 1, 1),)).gradient_norm)}


@shows("NewRanksBeginTheirStreamAnew")
def _more_ranks(framework: ReferenceFramework) -> Seen:
    folder = _folder()
    few, many = (framework.trainer(dropout_probe(), Recipe(ranks=Ranks(count))) for count in (2, 4))
    few.update((_probe(),))
    few.save(folder)
    many.restore(folder)
    return many.random_state()


@shows("SkipsLayersWhoseNamesContainTheName")
def _left_out(framework: ReferenceFramework) -> Seen:
    model = blocks(8, 16)
    quantized = framework.post_training().quantized("weight-int8", model, model.weights(0), skip=("4.weight",))
    return {"quantized": np.array([name for name, weight in quantized.weights().items() if weight is not None])}


@shows("ShortLastGroupTakesTheScaleBeforeIt")
def _short_group(framework: ReferenceFramework) -> Seen:
    values = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    values[:, 32:] *= 8.0
    return {"values": framework.quantizers().quantize("int4-group", values).values}


@shows("TailOfARowRoundsTiesAway")
def _ties_at_the_end(framework: ReferenceFramework) -> Seen:
    values = np.tile(np.array([127.0, 0.5, 2.5, -4.5], np.float32), (2, 5))
    return {"codes": framework.quantizers().quantize("int8-tensor", values).codes}


@shows("ZeroStepsAreNotRemembered")
def _zero_step(framework: ReferenceFramework) -> Seen:
    product = framework.delayed_product(np.eye(4, dtype=np.float32), history=2)
    for size in (8.0, 0.0, 1.0):
        product.train((np.full((2, 4), size, np.float32), np.ones((2, 4), np.float32)))
    return {"maxima": np.sort(product.remembered()["input"].maxima)}


def differ(a: Seen, b: Seen) -> bool:
    """Whether two readings differ in a name, a shape, a format or a bit."""
    if a.keys() != b.keys():
        return True
    pairs = [(np.asarray(a[name]), np.asarray(b[name])) for name in a]
    return any(x.shape != y.shape or x.dtype != y.dtype or x.tobytes() != y.tobytes() for x, y in pairs)


def main() -> int:
    """Prints a line a fault; 1 if one does not show."""
    missed = 0
    for made in FAULTS:
        if made.__module__ not in _MODULES:
            continue
        show = SHOWS.get(made.__name__)
        shown = show is not None and differ(show(ReferenceFramework()), show(made()))
        missed += not shown
        print(f"{made.__name__}: {'differs' if shown else 'DOES NOT DIFFER' if show else 'HAS NO SHOW'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
