"""Every technique that has a package of its own."""

from __future__ import annotations

from dataclasses import replace

from conformance.search.property import Property
from conformance.techniques.delayed_scaling.technique import DELAYED_SCALING
from conformance.techniques.eight_bit_state.technique import EIGHT_BIT_STATE
from conformance.techniques.float8_training.technique import FLOAT8_TRAINING
from conformance.techniques.formats.technique import FORMATS
from conformance.techniques.post_training.technique import POST_TRAINING
from conformance.techniques.qat.technique import QAT
from conformance.techniques.quantized_models import TECHNIQUES as QUANTIZED
from conformance.techniques.quantized_models import quantized

TECHNIQUES = (
    FORMATS,
    DELAYED_SCALING,
    FLOAT8_TRAINING,
    replace(
        POST_TRAINING,
        properties={"laws.quantized-models": Property(11, quantized, 1, 1 / 4)},
        features=(*(f"technique={name}" for name in QUANTIZED), *POST_TRAINING.features),
    ),
    QAT,
    EIGHT_BIT_STATE,
)
"""In the order of tables. Quantized models come from post-training quantization or from QAT, so their cases belong to
neither package."""
