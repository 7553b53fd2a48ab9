"""Held-out faults of quantization: their authors knew the specification and had not seen the suites."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from fixtures.arrays import Array
from frameworks.contract import QuantRule
from frameworks.reference import ReferenceFramework
from frameworks.reference.quantization.post_training import ReferenceQuantizedModel
from frameworks.reference.quantization.quantizers import ReferenceQuantizers
from tools.faults import fault

_LANES = 16


class _TailTiesAway(ReferenceQuantizers):
    def codes(self, values: Array, scale: Array, zero_point: Array, rule: QuantRule) -> Array:
        codes = np.array(super().codes(values, scale, zero_point, rule))
        tail = values.shape[-1] % _LANES
        if tail:
            quotient = values / scale
            away = np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)
            half = np.abs(quotient - np.trunc(quotient)) == 0.5
            clipped = np.clip(away + zero_point, rule.low, rule.high)
            codes[..., -tail:] = np.where(half, clipped, codes)[..., -tail:]
        return codes


@fault("https://github.com/microsoft/onnxruntime/pull/28606", "quantization.ties")
class TailOfARowRoundsTiesAway(ReferenceFramework):
    """Quantizers take the values of a row sixteen at a time, and those that are left over at its end by another loop,
    in which a quotient half-way between two codes goes away from zero instead of to the even one."""

    quantizers_class = _TailTiesAway


_SAMPLES = 64
"""Samples of a batch that calibration looks at."""


class _FirstSamples(ReferenceQuantizedModel):
    """Calibration looks at the first samples of each batch."""

    def observed(
        self, weights: Mapping[str, Array], batches: Sequence[Array], quantized: Collection[str]
    ) -> dict[str, Array]:
        return super().observed(weights, [batch[:_SAMPLES] for batch in batches], quantized)


@fault("https://github.com/apache/mxnet/pull/21008", "quantization.calibrated-range")
class CalibrationSeesFirstSamples(ReferenceFramework):
    """Calibration of static quantization looks at the first 64 samples of each batch, and at none that comes after
    them."""

    quantized_model_class = _FirstSamples
