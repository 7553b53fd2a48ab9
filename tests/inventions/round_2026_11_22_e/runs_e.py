"""Plain runs through the contract, each of which shows one fault."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fixtures import models
from fixtures.data import digits_batch, exact_batch, sincos_batch, token_batch
from fixtures.layers import BatchNorm, Convolution, Dropout, Flatten, Head, Heads, LayerNorm, SelfAttention
from fixtures.model import Batch, Model
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
from frameworks.contract import Framework
from frameworks.reference import scope

LINEAR = models.exact_linear()
NAME = "0.output.weight"
SHORT = models.encoder(width=8, heads=2, blocks=1, length=6)


def single(name: str, *layers: Any, sample: tuple[int, ...], units: int = 2) -> Model:
    """A model of these layers and one head with squared error."""
    return Model(name, (*layers, Heads((Head("output", units),))), sample, (("output", "squared_error"),))


def filled(value: float, *places: int) -> dict[str, Any]:
    """A gradient for LINEAR: zeros with a value at some places of the weight, or everywhere."""
    gradient = np.zeros((8, 4)) if places else np.full((8, 4), value)
    gradient.reshape(-1)[list(places)] = value
    return {NAME: gradient}


def folder() -> Path:
    return Path(tempfile.mkdtemp()) / "saved"


# operations


def empty_loss(f: Framework) -> Any:
    model = models.encoder(width=8, heads=2, blocks=1)
    last = f"{len(model.layers) - 1}.output.bias"
    run = f.trainer(model, Recipe(precision=FLOAT16), {**model.weights(0), last: np.full(4, 400.0, np.float32)})
    batch = token_batch(8)
    empty = Batch(batch.inputs[:4], {"output": batch.targets["output"][:4]}, np.zeros((4, 16), np.float32))
    return run.update((batch.part(4, 8), empty)).loss


def masked_labels(f: Framework) -> Any:
    return f.trainer(models.encoder(width=8, heads=2, blocks=1), Recipe()).update((token_batch(4),)).loss


def gelu_slope(f: Framework) -> Any:
    model = models.blocks(1, 8)
    batch = Batch(np.full((2, 8), 2.0, np.float32), {"output": np.array([1, 2])})
    eye = {**model.weights(0), "0.weight": 2.0 * np.eye(8, dtype=np.float32)}
    return f.trainer(model, Recipe(), eye).gradients((batch,))["0.weight"]


def constant_rows(f: Framework) -> Any:
    model = single("rows", LayerNorm(), sample=(64,))
    return f.trainer(model, Recipe()).predict(np.full((1, 64), 1234.567, np.float32))


def odd_length(f: Framework) -> Any:
    return f.trainer(SHORT, Recipe()).gradients((token_batch(4, 6),))


def strided(f: Framework) -> Any:
    layers = (Convolution(2), Convolution(2, stride=2), Flatten())
    batch = Batch(np.ones((2, 6, 6, 1), np.float32), {"output": np.ones((2, 2), np.float32)})
    return f.trainer(single("strided", *layers, sample=(6, 6, 1)), Recipe()).gradients((batch,))["0.weight"]


def first_row(f: Framework) -> Any:
    batch = Batch(np.arange(12).reshape(2, 6), {"output": np.array([0, 1])})
    return f.trainer(models.embedded(), Recipe()).gradients((batch,))["0.weight"]


def long_softmax(f: Framework) -> Any:
    with f.autocast(FLOAT16):
        return f.run_op("softmax", np.linspace(0, 1, 2000, dtype=np.float16)[None])


# updates


def large_clipped(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(scaling=StaticScaling(2.0**16), clip=1.0))
    update = run.feed(filled(2.0**60, 3))
    return update.gradient_norm, run.parameters()


def mixed_clipped(f: Framework) -> Any:
    run = f.trainer(models.sincos(4), Recipe(clip=0.01))
    return run.update((sincos_batch(8),)).gradient_norm, run.parameters()


def large_sum(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(SGD(2.0**-14), Precision("O3", "float16"), StaticScaling(1.0)))
    return run.feed(filled(2.0**13)).skipped, run.parameters()


def decayed(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(AdamW(0.1, weight_decay=0.1), FLOAT16, schedule=Steps((1,), (1.0, 0.5))))
    for _ in range(3):
        run.feed(filled(1.0))
    return run.parameters()


def averaged_scaled(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(scaling=DynamicScaling(), average=0.5))
    run.feed(filled(1.0))
    try:
        return run.predict_averaged(exact_batch().inputs)
    except AttributeError as error:
        return str(error)


def two_averaged(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(average=0.5, optimizers=2))
    for _ in range(2):
        run.feed(filled(1.0))
    return run.optimizer_state()


def skipped_first(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(scaling=DynamicScaling(), average=0.5))
    run.feed(filled(np.inf, 0))
    run.feed(filled(1.0))
    return run.optimizer_state()


def wide_average(f: Framework) -> Any:
    run = f.trainer(models.sincos(4), Recipe(average=0.5))
    run.update((sincos_batch(8),))
    return run.optimizer_state()


def by_hand(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(scaling=StaticScaling(16.0), optimizers=2))
    run.feed({NAME: np.ones((8, 4)), "0.output.bias": np.ones(4)}, unscale_calls=1)
    return run.parameters()


def subnormal(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(SGD(2.0**100), scaling=StaticScaling(2.0**10)))
    run.feed({"0.output.bias": np.full(4, 2.0**-130)})
    return run.parameters()


def at_the_cap(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(scaling=DynamicScaling(2.0**126, interval=1)))
    return [run.feed(filled(2.0**-140)).good_steps for _ in range(4)]


def evaluated_inside(f: Framework) -> Any:
    run = f.trainer(LINEAR, Recipe(accumulation=2))
    first, second = exact_batch().split(4, 4)
    run.accumulate(first, 8)
    run.predict(first.inputs)
    run.accumulate(second, 8)
    return run.apply().loss


# state


def reloaded(f: Framework, model: Model, recipe: Recipe, batch: Batch, updates: int = 0) -> Any:
    """The state after an update, a save, so many updates, and a load into another run."""
    run, path = f.trainer(model, recipe), folder()
    run.update((batch,))
    run.save(path)
    for _ in range(updates):
        run.update((batch,))
    other = f.trainer(model, recipe)
    other.restore(path)
    return other.state()


def low_moments(f: Framework) -> Any:
    return reloaded(f, LINEAR, Recipe(Adam(), Precision("O2", "bfloat16")), exact_batch())


def late_counters(f: Framework) -> Any:
    return reloaded(f, LINEAR, Recipe(schedule=Steps((1,), (1.0, 0.5))), exact_batch(), updates=1)


def deep_moments(f: Framework) -> Any:
    batch = Batch(np.eye(4, 8, dtype=np.float32), {"output": np.arange(4)})
    return reloaded(f, models.blocks(7, 8), Recipe(Adam()), batch)


def cached_weights(f: Framework) -> Any:
    run, path, batch = f.trainer(LINEAR, Recipe()), folder(), exact_batch()
    run.save(path)
    run.update((batch,))
    run.predict(batch.inputs)
    run.restore(path)
    return run.predict(batch.inputs)


def replayed(f: Framework) -> Any:
    layers = (SelfAttention(2), Dropout(0.5), Flatten())
    batch = Batch(np.ones((2, 3, 8), np.float32), {"output": np.ones((2, 2), np.float32)})
    recipe = Recipe(recompute=Recompute(1))
    return f.trainer(single("replayed", *layers, sample=(3, 8)), recipe).gradients((batch,))


def many_values(f: Framework) -> Any:
    run = f.trainer(single("many", BatchNorm(), Flatten(), sample=(28, 28, 1)), Recipe(precision=FLOAT16))
    run.update((Batch(digits_batch(84, image=True).inputs, {"output": np.ones((84, 2), np.float32)}),))
    return run.buffers()


def loaded_over_window(f: Framework) -> Any:
    run, path, batch = f.trainer(LINEAR, Recipe()), folder(), exact_batch()
    run.save(path)
    run.accumulate(batch, 8)
    run.restore(path)
    run.update((batch,))
    return run.parameters()


def second_run(f: Framework) -> Any:
    batch = Batch(np.ones((2, 64), np.float32), {"output": np.zeros((2, 1), np.float32)})
    return [f.trainer(models.dropout_probe(), Recipe()).gradients((batch,)) for _ in range(2)]


def second_statistics(f: Framework) -> Any:
    model = models.digits_convolution(filters=2)
    f.trainer(model, Recipe()).update((digits_batch(4, image=True),))
    return f.trainer(model, Recipe()).buffers()


def raised(f: Framework) -> Any:
    before = f.global_state()
    batch = Batch(np.ones((2, 5), np.float32), {"output": np.ones((2, 4), np.float32)})
    try:
        f.trainer(LINEAR, Recipe(precision=FLOAT16)).accumulate(batch, 2)
    except ValueError:
        after = f.global_state()
        scope.enter(scope.Scope())
        return before, after
    return None
