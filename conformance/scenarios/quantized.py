"""A digits network with post-training quantization, QAT and 8-bit Adam: accuracy, bytes, distances."""

from __future__ import annotations

from dataclasses import replace

from conformance.scenarios.scenario import MODEL, QuantizedSide, Scenario, Setting, Side, accuracy, rank_bytes, share_of
from fixtures.data import digits_batch
from fixtures.models import digits_mlp
from fixtures.recipe import Adam, Qat, Recipe

TRAINED, TESTED = 1400, 397
FLOAT = "float32"
"""The trained side."""

_TRAINING = Recipe(Adam(1e-3))
_INTEGERS = "Jacob et al. 2018, arXiv:1712.05877"


def _digits() -> Setting:
    model = digits_mlp((128, 64))
    about = f"{TRAINED} of scikit-learn's digits, {TESTED} others for the test; random weights"
    return Setting(model, digits_batch(TRAINED), digits_batch(TESTED, TRAINED), about)


def _with_digits(
    name: str, title: str, source: str, sides: tuple[Side, ...], published: dict[tuple[str, str], str]
) -> Scenario:
    return Scenario(
        name=name,
        title=f"A network of digits is trained {title}",
        source=source,
        setting=_digits,
        sides=sides,
        batch=64,
        epochs=5,
        learns_in=60,
        quality=accuracy(),
        published=published,
    )


def _quantized(name: str, title: str, source: str, **bits: int) -> Scenario:
    """A scenario with one side for each technique, with the number of bits of its weights."""
    techniques = {technique.replace("_", "-"): width for technique, width in bits.items()}
    made = (QuantizedSide(each, _TRAINING, technique=each) for each in techniques)
    published = {(each, share_of(MODEL, FLOAT)): f"{width / 32:g}" for each, width in techniques.items()}
    sides = (Side(FLOAT, _TRAINING), *made)
    return _with_digits(name, f"in float32, then its layers have {title}", source, sides, published)


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
INT8_LOAD = replace(
    _quantized(
        "int8-load",
        "weights in int8 that pass through float16, and inputs in int8 but for columns of outliers",
        "LLM.int8(), Dettmers et al. 2022, arXiv:2208.07339",
        load_int8=8,
    ),
    modes={"torch": "transformers"},
)
QAT_SIDE, CONVERTED = "aware", "converted"
QAT = _with_digits(
    "qat",
    "in float32 and by QAT, whose model is converted to int8",
    _INTEGERS,
    (
        Side(FLOAT, _TRAINING),
        Side(QAT_SIDE, _TRAINING.replace(quantization=Qat())),
        QuantizedSide(CONVERTED, _TRAINING, beside=QAT_SIDE),
    ),
    {(CONVERTED, share_of(MODEL, FLOAT)): "0.25"},
)
WIDE, EIGHT_BIT = "32 bits", "8 bits"
ADAM_8BIT = _with_digits(
    "adam-8bit",
    "by Adam with moments of 32 and of 8 bits",
    "Dettmers et al. 2022, arXiv:2110.02861",
    (Side(WIDE, _TRAINING), Side(EIGHT_BIT, Recipe(Adam(1e-3, state_bits=8)))),
    {(EIGHT_BIT, share_of(rank_bytes("optimizer"), WIDE)): "0.25"},
)
