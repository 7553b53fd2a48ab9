"""QAT of dense layers: one small method for each decision, which faults override."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import autograd.numpy as anp
import numpy as np

from fixtures.arrays import Array
from fixtures.model import Model, dense_weights
from frameworks.contract import Calibrated, CodeRange, FakeRule, QatRule, QuantRule
from frameworks.reference.core.arithmetic import Operations, Round
from frameworks.reference.core.tensor import Tensor, plain
from frameworks.reference.quantization.post_training import RULES
from frameworks.reference.quantization.quantizers import ReferenceQuantizers

RULE = QatRule(RULES["static-int8"], average=0.125)
_INITIAL_RANGE = np.array([np.inf, -np.inf])
"""Range of no values."""


Ranges = MutableMapping[str, Array]
"""The lowest and the highest value by "PATH.inputs" or "PATH.outputs"."""


class QatLayers:
    """Dense layers with fake-quantized operands."""

    rule = RULE

    def __init__(self, ops: Operations) -> None:
        self.ops = ops
        self.quantizers = ReferenceQuantizers()

    def initial_statistics(self, model: Model) -> dict[str, Array]:
        """The initial ranges of a run."""
        paths = [name.removesuffix(".weight") for name in dense_weights(model)]
        return {f"{path}.{what}": _INITIAL_RANGE for path in paths for what in ("inputs", "outputs")}

    def dense(
        self, path: str, x: Tensor, weight: Tensor, bias: Tensor | None, ranges: Ranges, *, observes: bool
    ) -> Tensor:
        """The output of the layer at `path` for x; its ranges move if it observes."""
        rules = self.rule.linear
        given = self.faked(f"{path}.inputs", x, rules.inputs, ranges, observes)
        result = self.ops.linear(given, self.weight(weight), bias)
        return self.faked(f"{path}.outputs", result, rules.outputs, ranges, observes)

    def weight(self, weight: Tensor) -> Tensor:
        """The weight, fake-quantized by its own ranges."""
        lowest, highest = self.quantizers.range_of(weight.plain(), self.rule.linear.weight)
        return self.fake(weight, lowest, highest, self.rule.linear.weight)

    def faked(self, name: str, x: Tensor, rule: QuantRule | None, ranges: Ranges, observes: bool) -> Tensor:
        """Inputs or outputs, fake-quantized by the observed range; unchanged before the first batch."""
        if rule is None:
            return x
        if observes and x.value.size:
            ranges[name] = self.moved(ranges[name], x.plain())
        lowest, highest = ranges[name]
        return x if lowest > highest else self.fake(x, lowest, highest, rule)

    def moved(self, known: Array, values: Array) -> Array:
        """A range after a batch, in float32: the first is taken whole."""
        ends = np.array([values.min(), values.max()])
        if known[0] > known[1]:
            return ends
        return np.asarray(known + (self.rule.average * (ends - known)).astype(np.float32), np.float32).astype(
            np.float64
        )

    def fake(self, x: Tensor, lowest: Array, highest: Array, rule: QuantRule) -> Tensor:
        """Fake-quantized values, with a gradient where the code needs no clipping."""
        scale, zero = self.codes_of(lowest, highest, rule)
        passes = FakeRule(rule.low, rule.high)

        def compute(value: Any, _: Round) -> Any:
            known = plain(value)
            with np.errstate(all="ignore"):
                unclipped = self.quantizers.rounded(known / scale) + zero
                values = (np.clip(unclipped, rule.low, rule.high) - zero) * scale
                inside = self.passes_on(known, unclipped, passes)
                return anp.where(inside, value + (values - known), values)

        return self.ops.apply("fake_quantize", compute, x)

    def codes_of(self, lowest: Array, highest: Array, rule: QuantRule) -> tuple[Array, Array]:
        """Scale, as float32 has it, and zero point of a range."""
        scale = self.quantizers.scale_of(np.asarray(lowest), np.asarray(highest), rule)
        scale = scale.astype(np.float32).astype(np.float64)
        return scale, self.quantizers.zero_point_of(np.asarray(lowest), scale, rule)

    def passes_on(self, values: Array, unclipped: Array, rule: FakeRule) -> Array:
        """Where a gradient is let through."""
        return self.quantizers.passes_on(values, unclipped, np.ones(()), np.zeros(()), rule)

    def observed(self, ranges: Ranges) -> dict[str, Calibrated]:
        """The ranges of the layers that a training pass has reached."""
        rules, calibrated = self.rule.linear, {}
        for name, (lowest, highest) in ranges.items():
            path, _, what = name.rpartition(".")
            if what == "inputs" and lowest <= highest and rules.inputs is not None:
                outputs = None if rules.outputs is None else self.code_range(ranges[f"{path}.outputs"], rules.outputs)
                calibrated[f"{path}.weight"] = Calibrated(self.code_range(ranges[name], rules.inputs), outputs)
        return calibrated

    def code_range(self, ends: Array, rule: QuantRule) -> CodeRange:
        """Scale and zero point of a range."""
        scale, zero = self.codes_of(ends[0], ends[1], rule)
        return CodeRange(float(scale), int(zero))
