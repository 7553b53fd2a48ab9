"""QAT as one technique."""

from __future__ import annotations

from conformance.techniques.technique import Technique
from fixtures.recipe import Qat, Recipe
from frameworks.reference.quantization.post_training import QatLayers
from frameworks.reference.training.trainer import ReferenceTrainer

_RUNS = ("converts", "averages", "beyond", "predicts", "loads", "freezes", "window", "skips")

QAT = Technique(
    recipes=(Recipe(quantization=Qat()),),
    rows={"aware": "QAT", "convert": "conversion after QAT"},
    clauses={
        "quantization.aware-*": "aware",
        "quantization.ranges-follow": "aware",
        "quantization.observers-hold-still": "aware",
        "quantization.convert-is-faithful": "convert",
    },
    breaks=(
        "quantization.ranges-follow",
        "quantization.observers-hold-still",
        "quantization.convert-is-faithful",
        "quantization.aware-survives-saving",
    ),
    features=tuple(f"aware-run={kind}" for kind in _RUNS),
    places={QatLayers: ("qat_class", ReferenceTrainer)},
)
