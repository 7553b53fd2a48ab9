"""One small run for each fault of this round, in which it and the reference differ in what a user can observe."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import exact_batch, sincos_batch, token_batch
from fixtures.layers import BatchNorm, Dense, Dropout, Head, Heads
from fixtures.model import Batch, LossKind, Model
from fixtures.models import (
    blocks,
    digits_convolution,
    digits_mlp,
    dropout_probe,
    embedded,
    exact_linear,
    scalar,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    BFLOAT16,
    SGD,
    Adam,
    AdamW,
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
from tests.inventions.round_2026_11_24_o import faults_o_1, faults_o_2, faults_o_3

Shown = Mapping[str, Array]
Show = Callable[[ReferenceFramework], Shown]
_MODULES = {module.__name__ for module in (faults_o_1, faults_o_2, faults_o_3)}


def _drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _ones(width: int, rows: int = 4) -> Batch:
    return Batch(np.ones((rows, width), np.float32), {"output": np.ones((rows, 1), np.float32)})


def _pixels(rows: int = 8, scale: float = 1.0, seed: int = 0) -> Batch:
    inputs = scale * _drawn(rows, 784, seed=seed)
    return Batch(inputs.astype(np.float32), {"output": np.arange(rows) % 10})


def _filled(model: Model, value: float) -> dict[str, Array]:
    return {name: np.full(shape, value) for name, shape in model.parameter_shapes().items()}


def _heads(*names: str, rows: int = 4) -> Batch:
    return Batch(_drawn(rows, 8), {name: _drawn(rows, 2, seed=1) for name in names})


def _reloaded(framework: ReferenceFramework, model: Model, recipe: Recipe, run: Any) -> Any:
    """A new run that goes on from a save of the given one."""
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        loaded = framework.trainer(model, recipe)
        loaded.restore(Path(folder))
    return loaded


def _batch_norm(framework: ReferenceFramework) -> Shown:
    model = Model(
        "normed", (BatchNorm(epsilon=1e-8), Heads((Head("output", 2),))), (4,), (("output", "squared_error"),)
    )
    batch = Batch((1e-3 * _drawn(8, 4)).astype(np.float32), {"output": _drawn(8, 2, seed=1)})
    return framework.trainer(model, Recipe()).gradients((batch,))


def _attention(length: int, factor: float) -> Show:
    def show(framework: ReferenceFramework) -> Shown:
        query, key, value = ((factor * _drawn(1, length, 8, seed=seed)).astype(np.float32) for seed in range(3))
        return {"mixed": framework.run_op("attention", query, key, value).value}

    return show


def _labels(framework: ReferenceFramework) -> Shown:
    model = Model("classes", (Heads((Head("output", 600),)),), (4,), (("output", "cross_entropy"),))
    run = framework.trainer(model, Recipe(precision=BFLOAT16))
    return run.gradients((Batch(_drawn(2, 4), {"output": np.array([3, 301])}),))


def _ids(framework: ReferenceFramework) -> Shown:
    return framework.trainer(embedded(40_000, 2, 3), Recipe()).predict(np.array([[5, 32_767, 39_000]]))


def _dropout(framework: ReferenceFramework) -> Shown:
    return framework.trainer(dropout_probe(2048, 0.1), Recipe()).gradients((_ones(2048),))


def _rates(framework: ReferenceFramework) -> Shown:
    framework.trainer(dropout_probe(64, 0.5), Recipe()).gradients((_ones(64),))
    return framework.trainer(dropout_probe(64, 0.25), Recipe()).gradients((_ones(64),))


def _second_replay(framework: ReferenceFramework) -> Shown:
    heads = Heads((Head("a", 2), Head("b", 2)))
    losses: tuple[tuple[str, LossKind], ...] = (("a", "squared_error"), ("b", "squared_error"))
    model = Model("dropped", (Dense(32), Dropout(0.5), heads), (8,), losses)
    recipe = Recipe(recompute=Recompute(1), separate_losses=True)
    return framework.trainer(model, recipe).gradients((_heads("a", "b"),))


def _stale(framework: ReferenceFramework) -> Shown:
    first, second = (framework.trainer(exact_linear(), Recipe()) for _ in range(2))
    first.update((exact_batch(seed=1),))
    second.update((exact_batch(seed=2),))
    with tempfile.TemporaryDirectory() as folder:
        second.save(Path(folder))
        first.predict(exact_batch().inputs)
        first.restore(Path(folder))
    return first.predict(exact_batch().inputs)


def _open_window(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(accumulation=2))
    run.accumulate(exact_batch(seed=1), 16)
    return run.gradients((exact_batch(seed=2),))


def _beta(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(Adam(0.01, beta1=0.0)))
    for seed in range(2):
        run.update((exact_batch(seed=seed),))
    return run.state()


def _decay(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(AdamW(0.1, weight_decay=0.1), schedule=Steps((1,), (1.0, 0.25))))
    for seed in range(2):
        run.update((exact_batch(seed=seed),))
    return run.parameters()


def _blocks(framework: ReferenceFramework) -> Shown:
    model = digits_mlp((128,))
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(2.0)))
    given = _filled(model, 0.5)
    given["0.weight"][-1, -1] = np.nan
    return {"skipped": np.array(run.feed(given).skipped)}


def _schedule(framework: ReferenceFramework) -> Shown:
    model = scalar()
    run = framework.trainer(model, Recipe(SGD(0.5), schedule=Steps((2,), (1.0, 0.5)), optimizers=2))
    return {f"rate {i}": np.array(run.feed(_filled(model, 1.0)).learning_rate) for i in range(3)}


def _average(framework: ReferenceFramework) -> Shown:
    model = scalar()
    run = framework.trainer(model, Recipe(SGD(0.5), scaling=DynamicScaling(2.0), optimizers=2, average=0.5))
    run.feed(_filled(model, 1.0))
    run.feed({"0.output.weight": np.full((1, 1), np.inf), "0.output.bias": np.ones(1)})
    return run.optimizer_state()


def _error(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(average=0.5))
    for seed in range(2):
        run.update((exact_batch(seed=seed),))
    try:
        run.predict_averaged(np.ones((2, 3), np.float32))
    except ValueError:
        return run.predict(exact_batch().inputs)
    return {}


def _counts(framework: ReferenceFramework) -> Shown:
    model, recipe = two_heads(), Recipe(Adam(0.01))
    run = framework.trainer(model, recipe)
    run.update((_heads("a"),))
    run.update((_heads("a", "b"),))
    loaded = _reloaded(framework, model, recipe, run)
    loaded.update((_heads("a", "b"),))
    return loaded.parameters()  # type: ignore[no-any-return]


def _text_order(framework: ReferenceFramework) -> Shown:
    model, recipe = blocks(6, 8), Recipe(SGD(0.1, momentum=0.9))
    run = framework.trainer(model, recipe)
    run.update((Batch(_drawn(4, 8), {"output": np.arange(4)}),))
    return _reloaded(framework, model, recipe, run).optimizer_state()  # type: ignore[no-any-return]


def _statistics(framework: ReferenceFramework) -> Shown:
    model, recipe = digits_convolution(0.0, 2), Recipe(precision=Precision("O2", "bfloat16"))
    run = framework.trainer(model, recipe)
    run.update((Batch(_drawn(4, 28, 28, 1), {"output": np.arange(4)}),))
    return _reloaded(framework, model, recipe, run).buffers()  # type: ignore[no-any-return]


def _overwritten(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe())
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(2):
            run.update((exact_batch(seed=seed),))
            run.save(Path(folder))
            run.restore(Path(folder))
    return run.parameters()


def _two_runs(framework: ReferenceFramework) -> Shown:
    recipe = Recipe(offload=Offload(("parameters",)))
    first, second = (framework.trainer(exact_linear(), recipe) for _ in range(2))
    first.update((exact_batch(seed=1),))
    second.update((exact_batch(seed=2),))
    first.update((exact_batch(seed=1),))
    return first.parameters()


def _on_disk(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(embedded(1024, 4, 6), Recipe(offload=Offload(("parameters",), "disk")))
    batch = token_batch(4, 6, 400)
    run.update((Batch(batch.inputs + 600, {"output": np.arange(4) % 3}),))
    return {"table": run.parameters()["0.weight"]}


def _norm(framework: ReferenceFramework) -> Shown:
    model = exact_linear(8, 4)
    run = framework.trainer(model, Recipe(ranks=Ranks(8, "full")))
    return {"norm": np.array(run.feed(_filled(model, 1.0)).gradient_norm)}


def _reduction(framework: ReferenceFramework) -> Shown:
    return framework.trainer(sincos(8), Recipe(ranks=Ranks(2))).gradients((sincos_batch(16),))


def _transposed(framework: ReferenceFramework) -> Shown:
    return {"codes": framework.formats().encode(_drawn(3, 5).T, "float8_e4m3fn")}


def _calibration(framework: ReferenceFramework) -> Shown:
    model, samples = digits_mlp((8,)), _drawn(100, 784)
    samples[90] *= 4.0
    made = framework.post_training().quantized("static-int8", model, model.weights(0), [samples])
    return {name: np.array([known.inputs.scale]) for name, known in made.calibrated().items()}


def _rows(framework: ReferenceFramework) -> Shown:
    values = _drawn(2, 2000)
    values[0, 1500] = 50.0
    return {"values": framework.quantizers().quantize("int8-row", values).values}


def _history(framework: ReferenceFramework) -> Shown:
    product = framework.delayed_product(_drawn(4, 2), history=1)
    for factor in (8.0, 1.0, 1.0):
        product.train(((factor * _drawn(3, 4, seed=1)).astype(np.float32), _drawn(3, 2, seed=2)))
    return {operand: np.array(known.scale) for operand, known in product.remembered().items()}


def _freeze(framework: ReferenceFramework) -> Shown:
    model = digits_mlp((8,))
    run = framework.trainer(model, Recipe(scaling=DynamicScaling(2.0), quantization=Aware(freeze=2)))
    run.update((_pixels(),))
    run.feed(_filled(model, np.inf))
    run.update((_pixels(scale=4.0, seed=1),))
    return run.buffers()


def _conversion(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_mlp((8,)), Recipe(SGD(0.5), average=0.5, quantization=Aware()))
    for seed in range(2):
        run.update((_pixels(seed=seed),))
    return {name: made.values for name, made in run.convert().weights().items() if made is not None}


SHOWS: dict[str, Show] = {
    "BatchNormEpsilonHasAFloor": _batch_norm,
    "PaddedKeysTakePart": _attention(100, 1.0),
    "AttentionWithoutMaximum": _attention(4, 20.0),
    "LabelsInTheFormatOfLogits": _labels,
    "SixteenBitIds": _ids,
    "EightBitDropoutRate": _dropout,
    "MasksAreKeptWithoutTheirRate": _rates,
    "SecondReplayDrawsAnew": _second_replay,
    "EvaluationKeepsWeightsByTheirUpdate": _stale,
    "GradientsOfTheOpenWindowToo": _open_window,
    "BetaOfZeroIsTheDefault": _beta,
    "DecayByTheRateBefore": _decay,
    "ChecksWholeBlocksOnly": _blocks,
    "EveryOptimizerMovesTheSchedule": _schedule,
    "AverageWaitsForBothOptimizers": _average,
    "AverageStaysAfterAnError": _error,
    "LoadGivesEveryParameterTheSameCount": _counts,
    "LoadDealsMomentsByTextOrder": _text_order,
    "LoadRoundsRunningStatistics": _statistics,
    "OverwrittenSaveIsNotReadAgain": _overwritten,
    "RunsShareTheirHostStore": _two_runs,
    "DiskTakesLargeArraysForUnchanged": _on_disk,
    "SmallParametersCountOnEveryShard": _norm,
    "RanksReduceFloat64InFloat32": _reduction,
    "CastsInTheOrderOfMemory": _transposed,
    "CalibrationSeesFirstSamples": _calibration,
    "RowsHaveTheRangeOfTheirFirstColumns": _rows,
    "HistoryOfOneNeverFalls": _history,
    "SkippedUpdatesCountForFreezing": _freeze,
    "ConvertsTheAverage": _conversion,
}


def _seen(show: Show, framework: ReferenceFramework) -> Shown | str:
    """What a show gives, or what it raises."""
    try:
        return show(framework)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _difference(expected: Shown | str, found: Shown | str) -> str:
    """What differs, in a few words; empty for nothing."""
    if isinstance(expected, str) or isinstance(found, str):
        return "" if expected == found else f"{_short(expected)} -> {_short(found)}"
    for name in {**expected, **found}:
        if name not in expected or name not in found:
            return f"{name} on one side only"
        if not np.array_equal(expected[name], found[name], equal_nan=True):
            return f"{name} differs"
    return ""


def _short(seen: Shown | str) -> str:
    return seen[:60] if isinstance(seen, str) else "results"


def main() -> int:
    """Prints a line for each fault; 1 if one of them does not differ or has no show."""
    missing = 0
    for made in (each for each in FAULTS if each.__module__ in _MODULES):
        show = SHOWS.get(made.__name__)
        found = "" if show is None else _difference(_seen(show, ReferenceFramework()), _seen(show, made()))
        print(f"{made.__name__}: {found or ('no show' if show is None else 'NO DIFFERENCE')}")
        missing += not found
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
