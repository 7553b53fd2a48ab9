"""Float8 training as one technique."""

from __future__ import annotations

from conformance.techniques.technique import Technique
from fixtures.recipe import Float8, Recipe
from frameworks.reference.quantization.float8_training import Float8Layers
from frameworks.reference.training.trainer import ReferenceTrainer

FLOAT8_TRAINING = Technique(
    recipes=(Recipe(quantization=Float8()),),
    rows={"float8-training": "float8 training"},
    clauses={"formats.float8-*": "float8-training"},
    places={Float8Layers: ("float8_class", ReferenceTrainer)},
)
