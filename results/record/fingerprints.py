"""What a record holds of an array: equal ones have equal fingerprints.

`results.record.arrays` takes and compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE = 32
"""How many values of an array a fingerprint holds."""


@dataclass(frozen=True)
class Fingerprint:
    """An array to the last bit, without all of its values.

    Attributes:
        name: "output/PATH" or "gradient/PATH" of a layer, or "parameter/NAME" for a parameter's gradient.
        format: "float32", "bfloat16", ...
        digest: first 16 hexadecimal digits of the SHA-256 of format, shape and bytes (C order, little-endian).
        norm: 2-norm, in float64.
        sample: bytes in base64 of `SAMPLE` values at evenly spread places, of all where there are no more.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    digest: str
    norm: float
    sample: str
