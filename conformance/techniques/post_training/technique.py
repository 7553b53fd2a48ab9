"""Post-training quantization as one technique."""

from __future__ import annotations

from conformance.techniques.technique import Technique
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel

POST_TRAINING = Technique(
    rows={
        "dynamic-int8": "dynamic int8 quantization",
        "static-int8": "static int8 quantization",
        "weight-int8": "weight-only int8",
        "weight-int4": "weight-only int4",
        "load-int8": "8-bit loading, outlier columns in floating point",
    },
    clauses={"quantization.calibrat*": "static-int8", "quantization.int8-load": "load-int8"},
    breaks=(
        "quantization.calibrated-range",
        "quantization.dynamic-scale",
        "quantization.linear-arithmetic",
        "quantization.only-what-was-asked",
        "quantization.survives-saving",
        "quantization.weights-as-declared",
    ),
    features=tuple(f"quantized={kind}" for kind in ("skips", "loads", "small-weights", "bias-before-dense")),
    places={ReferenceQuantizedModel: ("quantized_model_class", ReferenceFramework)},
)
