"""Casts, quantizers, packed codes, and quantized matmul as one technique."""

from __future__ import annotations

from conformance.search.properties import Property
from conformance.techniques.formats.cases import FAKE_QUANTIZERS, INTEGERS, PRODUCTS, QUANTIZERS, draw_calls
from conformance.techniques.formats.checks import SOURCES
from conformance.techniques.technique import Technique
from fixtures.arrays import NARROW
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.formats import ReferenceFormats, ReferenceQuantizers

FORMATS = Technique(
    rows={
        **{name: f"casts to `{name}`" for name in NARROW},
        "integer-products": "`int8` matmul in `int32`",
        "float8-products": "`float8` matmul in `float32`",
        "int4-packing": "packed int4, two to a byte",
        "int8-tensor": "int8, one range",
        "int8-row": "int8, a range for each row",
        "int8-column": "int8, a range for each column",
        "uint8-tensor": "uint8, with a zero point",
        "int4-group": "int4, a range for each group",
        "fake-int8-tensor": "fake int8, one scale",
        "fake-int8-column": "fake int8, a scale for each column",
        "fake-uint8-tensor": "fake uint8, with a zero point",
        "fake-int4-tensor": "fake int4, one scale",
    },
    clauses={
        "quantization.integer-products": "integer-products",
        "formats.products": "float8-products",
        "formats.packing": "int4-packing",
    },
    properties={"laws.codes": Property(10, draw_calls, 2, 1.0)},
    breaks=(
        "formats.decode",
        "formats.overflow-as-declared",
        "formats.packing",
        "formats.products",
        "formats.round-to-nearest",
        "quantization.codes-as-declared",
        "quantization.fake-values",
        "quantization.integer-products",
        "quantization.non-finite",
        "quantization.range-follows-data",
        "quantization.straight-through",
    ),
    features=(
        *(f"quantizer={name}" for name in (*QUANTIZERS, *FAKE_QUANTIZERS)),
        "quantizer=spoilt",
        "fake=beyond",
        *(f"cast={name}" for name in NARROW),
        *(f"source={name}" for name in SOURCES),
        "cast=beyond",
        *(f"product={'-by-'.join(formats)}" for formats in (INTEGERS, *PRODUCTS)),
        "packed",
    ),
    places={
        ReferenceFormats: ("formats_class", ReferenceFramework),
        ReferenceQuantizers: ("quantizers_class", ReferenceFramework),
    },
)
