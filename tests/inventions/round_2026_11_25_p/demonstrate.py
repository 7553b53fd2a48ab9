"""For each fault one small run by the reference and by the fault: what the contract shows of it differs.

    python -m tests.inventions.round_2026_11_25_p.demonstrate

prints a line a fault, and exits with 1 if one shows no difference.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.model import Batch, Model
from fixtures.models import (
    digits_convolution,
    digits_mlp,
    dropout_probe,
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
from frameworks.contract import Gradients, Trainer
from frameworks.reference import ReferenceFramework
from tests.inventions import FAULTS
from tests.inventions.round_2026_11_25_p import faults_p_1, faults_p_2

Shown = Mapping[str, Any]
O2 = Precision("O2", "float16")


def _filled(model: Model, value: float) -> dict[str, Array]:
    return {name: np.full(shape, value) for name, shape in model.parameter_shapes().items()}


def _after(run: Trainer, *fed: float | Gradients, model: Model) -> Shown:
    """The state after updates from gradients, or from gradients that are one value everywhere."""
    for each in fed:
        run.feed(_filled(model, each) if isinstance(each, float) else each)
    return run.state()


def _reloaded(framework: ReferenceFramework, model: Model, recipe: Recipe, batch: Batch) -> Shown:
    """The state of a run after two updates, a load into a new run, and two updates more."""
    first, second = (framework.trainer(model, recipe) for _ in range(2))
    for _ in range(2):
        first.update((batch,))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder) / "save")
        second.restore(Path(folder) / "save")
    loaded = second.state()
    rates = [second.update((batch,)).learning_rate for _ in range(2)]
    return {**{f"loaded/{name}": value for name, value in loaded.items()}, **second.state(), "rates": rates}


# accumulation, autocast, composition, master weights, recomputation, scaling


def _window_loss(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(accumulation=4))
    return {"loss": run.update(exact_batch().into(4)).loss}


def _prediction_in_window(framework: ReferenceFramework) -> Shown:
    batch, run = exact_batch(), framework.trainer(exact_linear(), Recipe(accumulation=2))
    first, second = batch.into(2)
    run.accumulate(first, batch.items)
    run.predict(batch.inputs)
    run.accumulate(second, batch.items)
    return {"loss": run.apply().loss}


def _wide_heads(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(sincos(8), Recipe(accumulation=3))
    run.update(sincos_batch(30).into(3))
    return run.parameters()


def _two_groups(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_mlp((8,)), Recipe(clip=0.01, groups=2))
    run.update((digits_batch(8),))
    return run.parameters()


def _same_scope_twice(framework: ReferenceFramework) -> Shown:
    before, x = framework.global_state(), np.ones((2, 2), np.float32)
    with framework.autocast(FLOAT16), framework.autocast(FLOAT16):
        inside = framework.run_op("matmul", x, x).dtype
    after = framework.run_op("matmul", x, x).dtype
    framework.restore_global_state(before)
    return {"inside": inside, "after": after}


def _attention(framework: ReferenceFramework) -> Shown:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 8, 16)).astype(np.float32) for _ in range(3))
    with framework.autocast(FLOAT16):
        return {f"by {size}": framework.run_op("attention", size * q, size * k, v).value for size in (4, 150)}


def _tenth(framework: ReferenceFramework) -> Shown:
    width = 4096
    run = framework.trainer(dropout_probe(width, 0.1), Recipe())
    return run.gradients((Batch(np.ones((4, width), np.float32), {"output": np.zeros((4, 1), np.float32)}),))


def _traced(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_convolution(filters=2), Recipe())
    run.trace(digits_batch(4, image=True))
    return run.state()


def _average_loaded(framework: ReferenceFramework) -> Shown:
    return _reloaded(framework, exact_linear(), Recipe(SGD(0.25), average=0.75), exact_batch())


def _both_evaluated(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_mlp((32,)), Recipe(SGD(0.05), FLOAT16, average=0.5))
    batch = digits_batch(8)
    for _ in range(3):
        run.update((batch,))
    return {"plain": run.predict(batch.inputs)["output"], "averaged": run.predict_averaged(batch.inputs)["output"]}


def _decay(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(scalar(), Recipe(AdamW(2.0**-14), O2))
    return _after(run, *[1.0] * 16, model=scalar())


def _recomputed(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_convolution(filters=2), Recipe(recompute=Recompute(3)))
    return run.gradients((digits_batch(4, image=True),))


def _norm(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(SGD(), O2, DynamicScaling(1.0)))
    update = run.feed(_filled(exact_linear(), 64.0))
    return {"norm": update.gradient_norm, "skipped": update.skipped}


def _frozen_for_a_while(framework: ReferenceFramework) -> Shown:
    model = two_heads()
    full = _filled(model, 0.5)
    without_last: Gradients = dict(list(full.items())[:-1])
    return _after(framework.trainer(model, Recipe(Adam())), full, without_last, full, model=model)


def _overflow_after_growth(framework: ReferenceFramework) -> Shown:
    scaling = DynamicScaling(2.0**10, growth=4.0, backoff=0.5, interval=2)
    return _after(framework.trainer(scalar(), Recipe(scaling=scaling)), 1.0, 1.0, np.inf, 1.0, model=scalar())


def _two_optimizers(framework: ReferenceFramework) -> Shown:
    recipe = Recipe(scaling=DynamicScaling(2.0**10, interval=4), optimizers=2)
    return _after(framework.trainer(scalar(), recipe), 1.0, 1.0, 1.0, model=scalar())


# formats, offload, quantization, saves and loads, sharding


def _decoded(framework: ReferenceFramework) -> Shown:
    return {"values": framework.formats().decode(np.arange(256, dtype=np.uint8), "float8_e4m3fn")}


def _delayed(framework: ReferenceFramework) -> Shown:
    product = framework.delayed_product(np.ones((4, 2), np.float32), history=2)
    for largest in (448.0, 1.0, 1.0, 1.0):
        product.train((np.full((3, 4), largest, np.float32), np.ones((3, 2), np.float32)))
    remembered = product.remembered()
    return {f"{name}/{part}": getattr(remembered[name], part) for name in remembered for part in ("scale", "maxima")}


def _offloaded_load(framework: ReferenceFramework) -> Shown:
    return _reloaded(framework, exact_linear(), Recipe(SGD(0.25), offload=Offload(("parameters",))), exact_batch())


def _masters_on_disk(framework: ReferenceFramework) -> Shown:
    recipe = Recipe(SGD(2.0**-14), O2, offload=Offload(("parameters",), "disk"))
    return _after(framework.trainer(scalar(), recipe), *[1.0] * 16, model=scalar())


def _one_folder(framework: ReferenceFramework) -> Shown:
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(SGD(0.25), offload=Offload(("parameters",), "disk", folder))
        one, other = (framework.trainer(scalar(), recipe) for _ in range(2))
        one.feed(_filled(scalar(), 1.0))
        return {"one": one.parameters()["0.output.bias"], "other": other.parameters()["0.output.bias"]}


def _four_bits(framework: ReferenceFramework) -> Shown:
    rng = np.random.default_rng(0)
    model = exact_linear(40, 4)
    weights = {name: value.copy() for name, value in model.weights(0).items()}
    weights["0.output.weight"][16:32] *= 8.0
    quantized = framework.post_training().quantized("weight-int4", model, weights)
    return quantized.predict(rng.standard_normal((4, 40)).astype(np.float32))


def _dynamic(framework: ReferenceFramework) -> Shown:
    model, batch = digits_mlp((8,)), digits_batch(8)
    quantized = framework.post_training().quantized("dynamic-int8", model, model.weights(0))
    quantized.predict(batch.part(0, 4).inputs)
    return quantized.predict(4.0 * batch.part(4, 8).inputs)


def _aware_window(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(digits_mlp((8,)), Recipe(accumulation=3, quantization=Aware()))
    run.update(digits_batch(12).into(3))
    return run.buffers()


def _saved_average(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(), Recipe(SGD(0.25), average=0.5))
    for _ in range(2):
        run.update((exact_batch(),))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder) / "save")
    return run.state()


def _schedule_loaded(framework: ReferenceFramework) -> Shown:
    recipe = Recipe(SGD(0.25), schedule=Steps((2, 3), (1.0, 0.5, 0.25)))
    return _reloaded(framework, exact_linear(), recipe, exact_batch())


def _statistics_loaded(framework: ReferenceFramework) -> Shown:
    return _reloaded(framework, digits_convolution(0.0, 2), Recipe(), digits_batch(4, image=True))


def _uneven(framework: ReferenceFramework) -> Shown:
    run = framework.trainer(exact_linear(7, 3), Recipe(SGD(0.25), ranks=Ranks(2, "full")))
    run.update((exact_batch(8, 7, 3),))
    return run.parameters()


def _other_heads(framework: ReferenceFramework) -> Shown:
    given = exact_batch()
    parts = [Batch(p.inputs, {h: p.targets["output"][:, :2]}) for p, h in zip(given.into(2), "ab", strict=True)]
    return framework.company(two_heads(), Recipe(ranks=Ranks(2))).gradients([(part,) for part in parts])[0]


def _more_ranks(framework: ReferenceFramework) -> Shown:
    recipe = Recipe(SGD(0.25), scaling=DynamicScaling(2.0**8, interval=1))
    two, four = (framework.company(exact_linear(), recipe.but(ranks=Ranks(count))) for count in (2, 4))
    two.update([(part,) for part in exact_batch().into(2)])
    with tempfile.TemporaryDirectory() as folder:
        two.save(Path(folder) / "save")
        four.restore(Path(folder) / "save")
    states = four.states()
    return {f"{rank}/{name}": value for rank, state in enumerate(states) for name, value in state.items()}


RUNS: Mapping[type, Callable[[ReferenceFramework], Shown]] = {
    faults_p_1.LossOfTheLastMicroBatch: _window_loss,
    faults_p_1.PredictionForgetsLosses: _prediction_in_window,
    faults_p_1.EveryAccumulatorIsFloat32: _wide_heads,
    faults_p_1.GroupsAreClippedApart: _two_groups,
    faults_p_1.ScopesOfOneSettingAreOneObject: _same_scope_twice,
    faults_p_1.AttentionScoresAreLow: _attention,
    faults_p_1.MaskOfRandomBytes: _tenth,
    faults_p_1.TraceIsRolledBack: _traced,
    faults_p_1.AverageBeginsAnewAfterALoad: _average_loaded,
    faults_p_1.CastsOutliveASwapOfWeights: _both_evaluated,
    faults_p_1.DecayRoundsTheMasters: _decay,
    faults_p_1.RecomputesInEvaluationMode: _recomputed,
    faults_p_1.NormIsInTheModelsFormat: _norm,
    faults_p_1.OneCountForAllParameters: _frozen_for_a_while,
    faults_p_1.OverflowTakesTheGrowthBack: _overflow_after_growth,
    faults_p_1.ScaleMovesForEachOptimizer: _two_optimizers,
    faults_p_2.NaNIsDecodedAs480: _decoded,
    faults_p_2.LargestValueIsNeverReset: _delayed,
    faults_p_2.OffloadedMastersAreNotLoaded: _offloaded_load,
    faults_p_2.FilesAreReadInTheModelsFormat: _masters_on_disk,
    faults_p_2.RunsOfAProcessShareFiles: _one_folder,
    faults_p_2.ShortGroupTakesStaleValues: _four_bits,
    faults_p_2.DynamicRangesAreKeptByShape: _dynamic,
    faults_p_2.FirstMicroBatchAloneIsObserved: _aware_window,
    faults_p_2.SavingLeavesTheAverageInTheModel: _saved_average,
    faults_p_2.ScheduleIsSavedBeforeItsStep: _schedule_loaded,
    faults_p_2.RunningStatisticsAreNotSaved: _statistics_loaded,
    faults_p_2.LastRankOfUnevenShardsStands: _uneven,
    faults_p_2.MissingGradientsAreNotZeros: _other_heads,
    faults_p_2.NewRanksBeginWithAFreshScale: _more_ranks,
}


def _ordinary(framework: ReferenceFramework) -> Shown:
    """A run that touches as many techniques as possible and no fault but by accident."""
    run = framework.trainer(encoder(8, 2, 1), Recipe(Adam(), FLOAT16, DynamicScaling(2.0**10), accumulation=2))
    run.update(token_batch(4).into(2))
    return run.state()


def _differing(one: Shown, other: Shown) -> list[str]:
    return [name for name in {**one, **other} if _unlike(one.get(name), other.get(name))]


def _unlike(one: Any, other: Any) -> bool:
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape or a.dtype != b.dtype:
        return True
    return not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def main() -> int:
    """Runs every demonstration; 1 if a fault shows no difference, or an ordinary run fails."""
    silent = 0
    faults: list[Any] = list(FAULTS)
    for made in faults:
        framework = made()
        differing = _differing(RUNS[made](ReferenceFramework()), RUNS[made](framework))
        silent += not differing
        _ordinary(framework)
        shown = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
        print(f"{made.__name__} ({made.kind}, {made.clause}): {shown or 'NO DIFFERENCE'}")
    print(f"{len(faults)} faults, {sum(made.kind == 'real' for made in faults)} real; {silent} without a difference")
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())
