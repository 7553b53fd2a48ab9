"""Default refusals of casts and products."""

from __future__ import annotations

from typing import Literal

from fixtures.arrays import Array
from frameworks.contract import NOT_OFFERED, Capability, Unsupported


class BaseFormats:
    """Refuses optional products and packing."""

    def integer_product(self, a: Array, b: Array) -> Array:
        raise Unsupported.declared(Capability.INTEGER_PRODUCTS, NOT_OFFERED)

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        raise Unsupported.declared(Capability.FLOAT8_PRODUCTS, NOT_OFFERED)

    def packed(self, codes: Array, axis: Literal[0, 1]) -> Array:
        raise Unsupported.declared(Capability.INT4_PACKING, NOT_OFFERED)

    def unpacked(self, stored: Array, length: int, axis: Literal[0, 1]) -> Array:
        raise Unsupported.declared(Capability.INT4_PACKING, NOT_OFFERED)
