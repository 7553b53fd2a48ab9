"""Runs of the reference, and equality of their states."""

import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model
from fixtures.recipe import Recipe
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer


def trained(model: Model, recipe: Recipe, **choices: object) -> ReferenceTrainer:
    return ReferenceFramework(**choices).trainer(model, recipe)


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)
