"""Held-out faults of formats: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

import numpy as np

from fixtures.arrays import Array
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.delayed_scaling import ReferenceDelayedProduct
from frameworks.reference.quantization.formats import ReferenceFormats
from tools.faults import fault


class _DecodesByShift(ReferenceFormats):
    """Reads exponent and mantissa of a code without a look at its special values."""

    def decode(self, codes: Array, format_name: str) -> Array:
        values = super().decode(codes, format_name)
        if format_name != "float8_e4m3fn":
            return values
        return np.where(np.isnan(values), np.where(codes > 127, -480.0, 480.0), values).astype(np.float32)


@fault("https://github.com/ml-explore/mlx/issues/4135", "formats.decode")
class NaNIsDecodedAs480(ReferenceFramework):
    """The two NaN codes of float8_e4m3fn come back as the numbers 480 and -480."""

    formats_class = _DecodesByShift


class _OneTable(ReferenceFormats):
    """Decodes both operands by the format of the first."""

    def float8_product(self, a: Array, b: Array, formats: tuple[str, str]) -> Array:
        return super().float8_product(a, b, (formats[0], formats[0]))


@fault("", "formats.products")
class ProductsKnowOneFormat(ReferenceFramework):
    """A product of operands in two formats of eight bits, such as activations and gradients, decodes both by the format
    of the first."""

    formats_class = _OneTable


class _ForgetsAfterSixteen(ReferenceDelayedProduct):
    """A product that looks at the newest sixteen values."""

    def most(self, maxima: Array) -> float:
        return super().most(maxima[:16])


@fault("", "formats.delayed-scaling")
class HistoryOfSixteen(ReferenceFramework):
    """Delayed scales follow the largest values of at most the last 16 steps, however long the history is."""

    delayed_class = _ForgetsAfterSixteen


class _InMemoryOrder(ReferenceFormats):
    """Codes are written in the order in which the values lie in memory."""

    def encode(self, values: Array, format_name: str) -> Array:
        given = np.asarray(values)
        return super().encode(given.ravel(order="K"), format_name).reshape(given.shape)


@fault("https://github.com/pytorch/FBGEMM/pull/2919", "formats.round-to-nearest")
class CastsInTheOrderOfMemory(ReferenceFramework):
    """A cast to a format of eight bits reads the values in the order in which they lie in memory, and writes the
    codes row by row, so that those of a transposed matrix come out at other places."""

    formats_class = _InMemoryOrder
