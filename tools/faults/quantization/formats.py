"""Faults of casts to formats of eight bits, and of products of integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.narrow import NarrowFormat
from frameworks.contract import CastRule
from frameworks.reference.quantization.formats import ReferenceFormats
from tools.faults import fault


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", "formats.decode")
class OneBiasForAll(ReferenceFormats):
    """Codes of the fnuz formats are read with the exponent bias of the fn formats."""

    def table(self, narrow: NarrowFormat) -> Array:
        return super().table(narrow) * (2.0 if narrow.specials == "fnuz" else 1.0)


@fault("https://github.com/triton-lang/triton/pull/11897", "formats.round-to-nearest")
class DoublesBecomeSingles(ReferenceFormats):
    """A float64 value is cast to float32 on the way."""

    def widened(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return super().widened(values.astype(np.float32) if values.dtype == np.float64 else values)


@fault("https://github.com/Z3Prover/z3/issues/464", "formats.round-to-nearest")
class NegativeZeroLosesItsSign(ReferenceFormats):
    """What rounds to zero has no sign."""

    def signed(self, codes: Array, values: Array, narrow: NarrowFormat) -> Array:
        return np.where(codes == 0, 0, super().signed(codes, values, narrow))


@fault("https://github.com/pytorch/pytorch/pull/178817", "formats.overflow-as-declared")
class NanBecomesANumber(ReferenceFormats):
    """NaN is cast to the largest value."""

    def special(self, narrow: NarrowFormat, what: str) -> int:
        return super().special(narrow, "saturate" if what == "nan" and narrow.specials == "ieee" else what)


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", "formats.overflow-as-declared")
class InfinityIsDeclaredAndNotKept(ReferenceFormats):
    """Infinities are declared to stay infinite, and become NaN."""

    def casts(self) -> Mapping[str, CastRule]:
        rules = super().casts()
        return {
            name: CastRule(rule.overflow, "inf" if rule.infinity == "nan" else "nan") for name, rule in rules.items()
        }

    def special(self, narrow: NarrowFormat, what: str) -> int:
        return super().special(narrow, super().casts()[narrow.name].infinity if what != "saturate" else what)


@fault("https://github.com/microsoft/onnxruntime/issues/6004", "quantization.integer-products")
class PairsSaturate(ReferenceFormats):
    """Two neighbouring products are added in sixteen bits, which saturate."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for start in range(0, a.shape[1], 2):
            pair = a[:, start : start + 2].astype(np.int64) @ b[start : start + 2].astype(np.int64)
            total += np.clip(pair, -32768, 32767)
        return total.astype(np.int32)


@fault("https://github.com/Comfy-Org/comfy-kitchen/pull/133", "quantization.integer-products")
class SumsInSingle(ReferenceFormats):
    """Products of int8 are added up in float32."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for place in range(a.shape[1]):
            total += a[:, place : place + 1].astype(np.float32) * b[place : place + 1].astype(np.float32)
        return total.astype(np.int32)
