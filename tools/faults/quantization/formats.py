"""Faults of casts to formats of eight bits, and of products of integers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fixtures.arrays import Array
from fixtures.narrow import NARROW, NarrowFormat
from frameworks.contract import CastRule
from frameworks.reference.quantization.formats import ReferenceFormats
from tools.faults import fault


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", component="formats", clauses=("formats.decode",))
class OneBiasForAll(ReferenceFormats):
    """Codes of the fnuz formats are read with the exponent bias of the fn formats."""

    def table(self, narrow: NarrowFormat) -> Array:
        return super().table(narrow) * (2.0 if narrow.specials == "fnuz" else 1.0)


@fault("https://github.com/ROCm/aiter/pull/3992", component="formats", clauses=("formats.decode",))
class SubnormalCodesAreZero(ReferenceFormats):
    """Codes of subnormal values stand for zero."""

    def table(self, narrow: NarrowFormat) -> Array:
        values = super().table(narrow)
        smallest = 2.0 ** (1 - narrow.bias) if narrow.signed else 0.0
        return np.where(np.abs(values) < smallest, 0.0 * values, values)


@fault("https://github.com/ROCm/aiter/pull/3992", component="formats", clauses=("formats.round-to-nearest",))
class HalfWayGoesUp(ReferenceFormats):
    """A value half-way between two others takes the one that is further from zero."""

    def goes_up(self, above: Array, below: Array, lower: Array) -> Array:
        return above >= below


@fault("https://github.com/triton-lang/triton/pull/2583", component="formats", clauses=("formats.round-to-nearest",))
class RoundedTwice(ReferenceFormats):
    """A value is cast to float16 on the way."""

    def widened(self, values: Array) -> Array:
        wide = super().widened(values)
        with np.errstate(over="ignore"):
            half = wide.astype(np.float16).astype(np.float64)
        return np.where(np.isfinite(half) & (np.abs(wide) > 2.0**-14), half, wide)


@fault("https://github.com/triton-lang/triton/pull/11897", component="formats", clauses=("formats.round-to-nearest",))
class DoublesBecomeSingles(ReferenceFormats):
    """A float64 value is cast to float32 on the way."""

    def widened(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            return super().widened(values.astype(np.float32) if values.dtype == np.float64 else values)


@fault("https://github.com/ROCm/aiter/issues/974", component="formats", clauses=("formats.round-to-nearest",))
class SubnormalsAreCutOff(ReferenceFormats):
    """Below the smallest normal value the fraction is cut off where it should be rounded."""

    def goes_up(self, above: Array, below: Array, lower: Array) -> Array:
        return super().goes_up(above, below, lower) & (lower >= 8)


@fault("https://github.com/Z3Prover/z3/issues/464", component="formats", clauses=("formats.round-to-nearest",))
class NegativeZeroLosesItsSign(ReferenceFormats):
    """What rounds to zero has no sign."""

    def signed(self, codes: Array, values: Array, narrow: NarrowFormat) -> Array:
        return np.where(codes == 0, 0, super().signed(codes, values, narrow))


@fault("https://github.com/pytorch/pytorch/pull/178817", component="formats", clauses=("formats.overflow-as-declared",))
class SaturatesAgainstItsRule(ReferenceFormats):
    """What overflows becomes the largest value, though NaN or infinity is declared."""

    def encode(self, values: Array, format_name: str) -> Array:
        wide = np.asarray(values, np.float64)
        if format_name == "int8":
            return super().encode(values, format_name)
        largest = NARROW[format_name].largest
        return super().encode(np.where(np.isfinite(wide), np.clip(wide, -largest, largest), wide), format_name)


@fault("https://github.com/sgl-project/sglang/pull/40581", component="formats", clauses=("formats.round-to-nearest",))
class SaturatesEarly(ReferenceFormats):
    """The last binade is left out: its values become the largest one below it."""

    def codes(self, magnitude: Array, narrow: NarrowFormat) -> Array:
        last = 2.0 ** np.floor(np.log2(narrow.largest))
        below = narrow.positive[narrow.positive < last][-1]
        return super().codes(np.where((magnitude >= last) & (magnitude <= narrow.largest), below, magnitude), narrow)


@fault("https://github.com/pytorch/pytorch/pull/178817", component="formats", clauses=("formats.overflow-as-declared",))
class NanBecomesANumber(ReferenceFormats):
    """NaN is cast to the largest value."""

    def special(self, narrow: NarrowFormat, what: str) -> int:
        return super().special(narrow, "saturate" if what == "nan" and narrow.specials == "ieee" else what)


@fault("https://github.com/pytorch/pytorch/pull/178817", component="formats", clauses=("formats.overflow-as-declared",))
class TailOfAVectorSaturates(ReferenceFormats):
    """What is left over after blocks of eight values goes another way, which saturates."""

    def encode(self, values: Array, format_name: str) -> Array:
        codes = super().encode(values, format_name)
        rest = len(values) % 8 if values.ndim == 1 and format_name != "int8" else 0
        if rest:
            largest = NARROW[format_name].largest
            codes[-rest:] = super().encode(np.clip(values[-rest:].astype(np.float64), -largest, largest), format_name)
        return codes


@fault(
    "https://github.com/pytorch/pytorch/issues/154328", component="formats", clauses=("formats.overflow-as-declared",)
)
class NothingGrowsPastTheLongInteger(ReferenceFormats):
    """Values beyond 2^63 are taken through an integer on the way, and come out as zero."""

    def widened(self, values: Array) -> Array:
        wide = super().widened(values)
        return np.where(np.isfinite(wide) & (np.abs(wide) >= 2.0**63), 0.0, wide)


@fault("https://github.com/jax-ml/ml_dtypes/issues/400", component="formats", clauses=("formats.overflow-as-declared",))
class InfinityIsDeclaredAndNotKept(ReferenceFormats):
    """Infinities are declared to stay infinite, and become NaN."""

    def casts(self) -> Mapping[str, CastRule]:
        rules = super().casts()
        return {
            name: CastRule(rule.overflow, "inf" if rule.infinity == "nan" else "nan") for name, rule in rules.items()
        }

    def special(self, narrow: NarrowFormat, what: str) -> int:
        return super().special(narrow, super().casts()[narrow.name].infinity if what != "saturate" else what)


@fault(
    "https://github.com/triton-lang/triton/issues/2296",
    component="products",
    clauses=("quantization.integer-products",),
)
class SumsInEightBits(ReferenceFormats):
    """Products of int8 are added up in int8."""

    def integer_product(self, a: Array, b: Array) -> Array:
        return super().integer_product(a, b).astype(np.int8).astype(np.int32)


@fault(
    "https://github.com/microsoft/onnxruntime/issues/6004",
    component="products",
    clauses=("quantization.integer-products",),
)
class PairsSaturate(ReferenceFormats):
    """Two neighbouring products are added in sixteen bits, which saturate."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.int64)
        for start in range(0, a.shape[1], 2):
            pair = a[:, start : start + 2].astype(np.int64) @ b[start : start + 2].astype(np.int64)
            total += np.clip(pair, -32768, 32767)
        return total.astype(np.int32)


@fault(
    "https://github.com/Comfy-Org/comfy-kitchen/pull/133",
    component="products",
    clauses=("quantization.integer-products",),
)
class SumsInSingle(ReferenceFormats):
    """Products of int8 are added up in float32."""

    def integer_product(self, a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for place in range(a.shape[1]):
            total += a[:, place : place + 1].astype(np.float32) * b[place : place + 1].astype(np.float32)
        return total.astype(np.int32)
