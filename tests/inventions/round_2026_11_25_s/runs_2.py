"""Small runs that show the faults of saves and loads, offload, sharding, quantization and narrow formats."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch
from fixtures.model import Model
from fixtures.models import digits_mlp, exact_linear, scalar, sincos
from fixtures.recipe import SGD, Adam, AdamW, Aware, Offload, Ranks, Recipe, Steps
from frameworks.contract import Framework
from tests.inventions.round_2026_11_25_s.runs_1 import filled

Run = Callable[[Framework], Any]


def resumed(framework: Framework, recipe: Recipe, before: int = 2) -> Any:
    """Updates, a save, a load into a new run, and another update there: what it reported, and the whole state."""
    batch = digits_batch(8)
    first, second = (framework.trainer(digits_mlp((8,)), recipe) for _ in range(2))
    for _ in range(before):
        first.update((batch,))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    return second.update((batch,)), second.state()


def predicted_after_load(framework: Framework) -> Any:
    batch = exact_batch()
    run = framework.trainer(exact_linear(), Recipe(SGD(0.5)))
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        run.update((batch,))
        run.predict(batch.inputs)
        run.restore(Path(folder))
    return run.predict(batch.inputs)


def loaded_without_average(framework: Framework) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        framework.trainer(scalar(), Recipe()).save(Path(folder))
        try:
            framework.trainer(scalar(), Recipe(average=0.5)).restore(Path(folder))
        except ValueError:
            return "refused"
    return "taken"


def offloaded_heads(framework: Framework) -> Any:
    run = framework.trainer(sincos(4), Recipe(Adam(), offload=Offload(("parameters", "optimizer"))))
    run.update((sincos_batch(8),))
    return run.state()


def offloaded_digits(framework: Framework) -> Any:
    run = framework.trainer(digits_mlp((8,)), Recipe(SGD(0.1), offload=Offload(("parameters",), "disk")))
    run.update((digits_batch(8),))
    return run.parameters()


def norm_of_shards(framework: Framework) -> Any:
    run = framework.trainer(digits_mlp((8,)), Recipe(clip=0.5, ranks=Ranks(2, "full")))
    return run.update((digits_batch(8),)).gradient_norm


def loaded_by_three(framework: Framework) -> Any:
    model = exact_linear(7, 3)
    two, three = (framework.company(model, Recipe(ranks=Ranks(count, "full"))) for count in (2, 3))
    with tempfile.TemporaryDirectory() as folder:
        two.save(Path(folder))
        three.restore(Path(folder))
    return three.states()


def ranks_with_one_bias(framework: Framework) -> Any:
    run = framework.trainer(exact_linear(8, 1), Recipe(SGD(0.5), ranks=Ranks(2)))
    run.update((exact_batch(8, 8, 1),))
    return run.parameters()


def calibrated(framework: Framework) -> Any:
    model = digits_mlp((8,))
    batch = digits_batch(16).inputs
    return framework.post_training().quantized("static-int8", model, model.weights(0), [batch]).calibrated()


def uneven_blocks(framework: Framework) -> Any:
    model = exact_linear(1, 5000)
    run = framework.trainer(model, Recipe(Adam(state_bits=8)))
    run.feed({name: np.linspace(2.0, 1.0, value.size).reshape(value.shape) for name, value in _zeros(model).items()})
    return run.optimizer_state()


def _zeros(model: Model) -> dict[str, Array]:
    return filled(model, 0.0)


def remembered(framework: Framework) -> Any:
    product = framework.delayed_product(np.ones((2, 2), np.float32), history=2)
    for size in (8.0, 1.0, 1.0):
        product.train((np.full((1, 2), size, np.float32), np.full((1, 2), size, np.float32)))
    return product.remembered()


def mixed_product(framework: Framework) -> Any:
    codes = np.arange(64, dtype=np.uint8).reshape(8, 8)
    return framework.formats().float8_product(codes, codes, ("float8_e4m3fn", "float8_e5m2"))


def trained_after_conversion(framework: Framework) -> Any:
    run = framework.trainer(digits_mlp((8,)), Recipe(quantization=Aware()))
    run.update((digits_batch(8),))
    run.convert()
    run.update((digits_batch(8, 8),))
    return run.observed()


RUNS: dict[str, Run] = {
    "LoadTrainsOnFromTheAverage": lambda f: resumed(f, Recipe(average=0.5)),
    "OptimizerIsSavedInBfloat16": lambda f: resumed(f, Recipe(Adam())),
    "LoadSwapsTheBetas": lambda f: resumed(f, Recipe(AdamW())),
    "FirstRateAfterLoadIsTheBaseRate": lambda f: resumed(f, Recipe(schedule=Steps((1,), (1.0, 0.5)))),
    "PredictionsKeepWeightsOverALoad": predicted_after_load,
    "AverageIsOptionalInLoads": loaded_without_average,
    "HostKeepsFloat32": offloaded_heads,
    "DiskWritesWhatLooksChanged": offloaded_digits,
    "RanksJoinNormsInBfloat16": norm_of_shards,
    "LoadTakesPaddingForRows": loaded_by_three,
    "TinyParametersKeepOneGradient": ranks_with_one_bias,
    "CalibrationCutsEndsOff": calibrated,
    "LastBlockTakesForeignMagnitudes": uneven_blocks,
    "LargestValueIsNotResetBetweenSteps": remembered,
    "ProductsKnowOneFormat": mixed_product,
    "ConversionFreezesRanges": trained_after_conversion,
}
