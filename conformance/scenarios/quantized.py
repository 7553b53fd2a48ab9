"""A network of digits that is quantized after its training: accuracy, bytes and how far its outputs move."""

from __future__ import annotations

from conformance.scenarios.scenario import MODEL, QuantizedSide, Scenario, Setting, Side, accuracy, share_of
from fixtures.data import digits_batch
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Recipe

TRAINED, TESTED = 1400, 397
FLOAT = "float32"
"""The side that is trained."""

_TRAINING = Recipe(Adam(1e-3))
_INTEGERS = "Jacob et al. 2018, arXiv:1712.05877"


def _digits() -> Setting:
    model = digits_mlp((128, 64))
    about = f"{TRAINED} of scikit-learn's digits, {TESTED} others for the test; random weights"
    return Setting(model, digits_batch(TRAINED), digits_batch(TESTED, TRAINED), about)


def _quantized(name: str, title: str, source: str, **bits: int) -> Scenario:
    """The scenario with a side for each technique, which has weights of so many bits."""
    techniques = {technique.replace("_", "-"): width for technique, width in bits.items()}
    return Scenario(
        name=name,
        title=f"A network of digits is trained in float32, then its layers have {title}",
        source=source,
        setting=_digits,
        sides=(Side(FLOAT, _TRAINING), *(QuantizedSide(each, _TRAINING, technique=each) for each in techniques)),
        batch=64,
        epochs=5,
        learns_in=60,
        quality=accuracy(),
        published={(each, share_of(MODEL, FLOAT)): f"{width / 32:g}" for each, width in techniques.items()},
    )


DYNAMIC_INT8 = _quantized(
    "dynamic-int8", "weights and inputs in int8, inputs by the range of each call", _INTEGERS, dynamic_int8=8
)
STATIC_INT8 = _quantized(
    "static-int8", "weights, inputs and outputs in int8, by the range that calibration saw", _INTEGERS, static_int8=8
)
WEIGHT_ONLY = _quantized(
    "weight-only",
    "weights in int8 or int4 and inputs in float32",
    "LLM.int8() (arXiv:2208.07339); GPTQ (arXiv:2210.17323)",
    weight_int8=8,
    weight_int4=4,
)
