"""Demonstrations of the faults of offload, of formats and quantization, and of ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fixtures.data import exact_batch
from fixtures.model import Window
from fixtures.models import blocks, exact_linear, exact_stack, two_heads
from fixtures.recipe import SGD, Adam, Aware, Offload, Precision, Ranks, Recipe
from frameworks.reference import ReferenceFramework
from tests.inventions.round_2026_11_25_q import faults_q_3
from tests.inventions.round_2026_11_25_q.seen import Demonstration, Seen, heads_batch, numbered, resumed


def _shares(count: int) -> list[Window]:
    return [(part,) for part in heads_batch("a", "b").into(count)]


def _masters(framework: ReferenceFramework) -> Seen:
    model = exact_linear()
    recipe = Recipe(precision=Precision("O2", "bfloat16"), offload=Offload(("parameters",)))
    run = framework.trainer(model, recipe)
    run.update((exact_batch(),))
    return resumed(framework, run, model, recipe).master_parameters()


def _moments(framework: ReferenceFramework) -> Seen:
    model, recipe = exact_linear(), Recipe(Adam(), offload=Offload(("optimizer",)))
    run = framework.trainer(model, recipe)
    run.update((exact_batch(),))
    return {k: np.array(size) for k, size in resumed(framework, run, model, recipe).offloaded().items()}


def _ties(framework: ReferenceFramework) -> Seen:
    return {"codes": framework.formats().encode(np.array([1.0, 1.5, 3.0, 0.75]), "float8_e8m0fnu")}


def _skips(framework: ReferenceFramework) -> Seen:
    model = blocks(8, width=8)
    made = framework.post_training().quantized("weight-int8", model, model.weights(0), skip=("2.weight",))
    return {name: np.array(weight is None) for name, weight in made.weights().items()}


def _history(framework: ReferenceFramework) -> Seen:
    product = framework.delayed_product(np.eye(2, dtype=np.float32), history=4)
    for largest in (4.0, 2.0, np.inf, 1.0, 1.0, 1.0):
        product.train((np.full((1, 2), largest, np.float32), np.ones((1, 2), np.float32)))
    seen = product.remembered()["input"]
    return {"scale": np.array(seen.scale), "maxima": seen.maxima}


def _ranges(framework: ReferenceFramework) -> Seen:
    run = framework.trainer(exact_stack(8, 1), Recipe(accumulation=2, quantization=Aware()))
    run.update((exact_batch(), exact_batch(seed=1)))
    return {name: np.array(each.outputs.scale) for name, each in run.observed().items() if each.outputs is not None}


def _short_block(framework: ReferenceFramework) -> Seen:
    model = exact_linear(65, 65)
    run = framework.trainer(model, Recipe(Adam(state_bits=8)))
    run.feed({"0.output.weight": np.arange(65.0 * 65.0).reshape(65, 65)})
    return run.optimizer_state()


def _counts(framework: ReferenceFramework) -> Seen:
    company = framework.company(two_heads(), Recipe(SGD(0.25, momentum=0.5), ranks=Ranks(4, "optimizer")))
    company.update(_shares(4))
    return numbered(company.states())


def _loaded_by(framework: ReferenceFramework, recipe: Recipe, count: int) -> Seen:
    """What ranks have after they loaded the save of two that made two updates."""
    assert recipe.ranks is not None
    model = two_heads()
    company = framework.company(model, recipe)
    for _ in range(2):
        company.update(_shares(2))
    other = framework.company(model, recipe.but(ranks=Ranks(count, recipe.ranks.level)))
    with tempfile.TemporaryDirectory() as folder:
        company.save(Path(folder))
        other.restore(Path(folder))
    return numbered(other.states())


def _padding(framework: ReferenceFramework) -> Seen:
    return _loaded_by(framework, Recipe(SGD(0.25, momentum=0.5), ranks=Ranks(2, "gradients")), 4)


def _average(framework: ReferenceFramework) -> Seen:
    return _loaded_by(framework, Recipe(SGD(0.25), average=0.5, ranks=Ranks(2)), 2)


REST: Mapping[str, Demonstration] = {
    faults_q_3.LoadLeavesOffloadedMasters.__name__: _masters,
    faults_q_3.LoadedMomentsStayOnTheDevice.__name__: _moments,
    faults_q_3.TiesOfExponentsGoUp.__name__: _ties,
    faults_q_3.SkipsByPartsOfNames.__name__: _skips,
    faults_q_3.DelayedHistoryForgetsWhatIsNotFinite.__name__: _history,
    faults_q_3.RangesFollowTheFirstMicroBatch.__name__: _ranges,
    faults_q_3.ShortBlockTakesItsNeighbours.__name__: _short_block,
    faults_q_3.EmptyShardsDoNotCount.__name__: _counts,
    faults_q_3.PaddingShiftsMoments.__name__: _padding,
    faults_q_3.OnlyTheFirstRankLoadsTheAverage.__name__: _average,
}
