"""Fingerprints of arrays in a record: equal arrays have equal fingerprints.

`results.record.arrays` takes and compares them.
"""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from results.record.values import END, NonEmpty, Number, number

SAMPLE = 32
"""Number of sampled values in a fingerprint."""

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


@dataclass(frozen=True)
class Fingerprint:
    """An array bit for bit, without all of its values.

    Attributes:
        name: "output/PATH" or "gradient/PATH" of a layer, or "parameter/NAME" for a parameter's gradient.
        format: "float32", "bfloat16", ...
        digest: first 16 hexadecimal digits of the SHA-256 of format, shape and bytes (C order, little-endian).
        norm: 2-norm, in float64.
        sample: bytes in base64 of `SAMPLE` values at evenly spread places, of all where there are no more.
    """

    name: NonEmpty
    format: str
    shape: tuple[Size, ...]
    digest: Annotated[str, Meta(pattern=f"^[0-9a-f]{{16}}{END}")]
    norm: Number
    sample: Annotated[str, Meta(pattern=f"^[A-Za-z0-9+/]*={{0,2}}{END}")]

    def __post_init__(self) -> None:
        if isinstance(self.norm, str):
            object.__setattr__(self, "norm", number(self.norm))
