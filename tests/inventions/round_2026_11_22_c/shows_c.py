"""What the demonstrations share: small models, small data and short runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fixtures.data import exact_batch
from fixtures.layers import Head, Heads
from fixtures.model import Batch, Model
from fixtures.recipe import Steps

BATCH = exact_batch()
STEPS = Steps((1, 4), (1.0, 0.5, 0.25))
SHOWN = {}


def shows(function):
    SHOWN[function.__name__] = function
    return function


def chain(*layers, units=2, sample=(8,)):
    return Model("chain", (*layers, Heads((Head("output", units),))), sample, (("output", "squared_error"),))


def data(size=4, width=8, units=2, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, width)).astype(np.float32)
    return Batch(x, {"output": rng.standard_normal((size, units)).astype(np.float32)})


def ones(model, value=1.0):
    return {name: np.full(shape, value) for name, shape in model.parameter_shapes().items()}


def trained(run, batch, count):
    return [run.update((batch,)) for _ in range(count)]


def resumed(framework, model, recipe, batch, before, after):
    run = framework.trainer(model, recipe)
    trained(run, batch, before)
    other = framework.trainer(model, recipe)
    with tempfile.TemporaryDirectory() as folder:
        run.save(Path(folder))
        other.restore(Path(folder))
    trained(other, batch, after)
    return other.state()
