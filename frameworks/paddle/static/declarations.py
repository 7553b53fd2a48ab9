"""Unsupported capabilities of Paddle's static graph on a device, with reasons."""

from __future__ import annotations

from paddle.base import core

from frameworks.contract import Capability
from frameworks.paddle.declarations import reason_in_both_graphs
from frameworks.paddle.training.options import REFUSED_IN_BOTH

_FLOAT16 = "on a CPU matmul has no float16 kernel in the static graph: building the program raises TypeError"
_UNSCALE = (
    "GradScaler.unscale_ raises in static mode, where minimize unscales, updates and adjusts the scale in one call"
)
_TWO_LOSSES = (
    "in static mode a GradScaler goes backward inside minimize alone, from one loss, and a second call is a second "
    "update: an overflow of one loss does not skip what the other one gives"
)
_MERGE = (
    "in programs of the new IR GradientMergeOptimizer raises AssertionError, fleet's gradient_merge TypeError and the "
    "gradient-merge pass of paddle.distributed ValueError; dist.to_static alone merges, by splitting one fed batch, "
    "and otherwise a program has to add its gradients up itself"
)
_RECOMPUTE = (
    "in programs of the new IR recompute() only marks operations, which dist.to_static alone computes twice, by an "
    "undocumented option, and RecomputeOptimizer raises AssertionError"
)
_PYTHON = "a segment's Python code runs only when the program is built, and py_func raises in programs of the new IR"

_QUANTIZATION = "paddle.quantization converts layers of the dynamic graph, and raises in static mode"

_REASONS: dict[Capability, str] = {
    **dict.fromkeys((Capability.INT8_TENSOR, Capability.FAKE_INT8_TENSOR, Capability.FAKE_INT4_TENSOR), _QUANTIZATION),
    Capability.STATIC_INT8: _QUANTIZATION,
    Capability.EXPLICIT_UNSCALE: _UNSCALE,
    Capability.SECOND_UNSCALE: _UNSCALE,
    Capability.TWO_LOSSES: _TWO_LOSSES,
    Capability.ACCUMULATION: _MERGE,
    Capability.PARTIAL_WINDOW: _MERGE,
    Capability.RECOMPUTE: _RECOMPUTE,
    Capability.RECOMPUTE_NESTED: _RECOMPUTE,
    Capability.RECOMPUTE_CASES: _RECOMPUTE,
    Capability.SEGMENT_CALLS: _PYTHON,
    Capability.GROUPS: "in static mode minimize raises TypeError for a parameter group",
    Capability.AVERAGE: "in programs of the new IR ExponentialMovingAverage raises TypeError",
    Capability.SAVED_BYTES: "forward and backward are one program, which does not stop between the two",
}
_ON_CPU: dict[Capability, str] = {
    Capability.O1_FLOAT16: _FLOAT16,
    Capability.O2_FLOAT16: _FLOAT16,
    Capability.O3_FLOAT16: _FLOAT16,
}
_NO_BFLOAT16 = (
    "core.supports_bfloat16() says that this CPU lacks the instructions for bfloat16, which come with avx512f, and "
    "products of bfloat16 raise std::exception"
)
_WITHOUT_BFLOAT16: dict[Capability, str] = dict.fromkeys(
    (Capability.AUTOCAST_SCOPE, Capability.O1_BFLOAT16, Capability.O2_BFLOAT16, Capability.O3_BFLOAT16), _NO_BFLOAT16
)


SEVERAL_OPTIMIZERS = (
    "ClipGradByGlobalNorm takes the norm of one optimizer's gradients, this recipe needs several optimizers, and "
    "clip_grad_norm_ raises RuntimeError in static mode"
)
"""Why a recipe with several optimizers is not clipped."""

SCALED_FLOAT64 = (
    "under a GradScaler the static graph takes gradients in float32 and one low format only: minimize raises"
)
"""Why a model with a float64 head is not trained under a scaler."""


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities of the static graph on a device, with reasons."""
    both = {each: reason for each in Capability if (reason := reason_in_both_graphs(each, device)) is not None}
    here = _ON_CPU if device == "cpu" else {}
    if device == "cpu" and not core.supports_bfloat16():
        here = here | _WITHOUT_BFLOAT16
    return here | _REASONS | REFUSED_IN_BOTH | both
