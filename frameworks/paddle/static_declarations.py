"""What Paddle's static graph mode does not do, and why."""

from __future__ import annotations

from frameworks.contract import Capability

_FLOAT16 = "on a CPU the static graph has no float16 kernels: building the program raises InvalidType"
_O2 = "on a CPU the static graph has no low-precision kernels for losses: building an O2 program raises InvalidType"
_ONE_CALL = "GradScaler.minimize in static mode goes backward, unscales, updates and adjusts the scale in one call"
_RECOMPUTE = "recompute() in static mode only marks operations: the program computes each of them once"

_REASONS: dict[Capability, str] = {
    Capability.FLOAT64_HEADS: "an optimizer of the static graph has one learning rate in one format for all parameters",
    Capability.EXPLICIT_UNSCALE: _ONE_CALL,
    Capability.TWO_OPTIMIZERS: _ONE_CALL,
    Capability.TWO_LOSSES: _ONE_CALL,
    Capability.ACCUMULATION: "GradientMergeOptimizer refuses programs of the new IR, and there is no other way",
    Capability.PARTIAL_WINDOW: "the static graph accumulates no gradients between runs of a program",
    Capability.RECOMPUTE: _RECOMPUTE,
    Capability.RECOMPUTE_NESTED: _RECOMPUTE,
    Capability.RECOMPUTE_CASES: _RECOMPUTE,
    Capability.SEGMENT_CALLS: "a segment's Python code runs only when the program is built",
    Capability.GROUPS: "parameter groups exist in dynamic mode only: minimize raises TypeError",
    Capability.AVERAGE: "ExponentialMovingAverage raises TypeError in programs of the new IR",
    Capability.SAVED_BYTES: "forward and backward are one program, which never stops between the two",
}
_ON_CPU: dict[Capability, str] = {
    Capability.O1_FLOAT16: _FLOAT16,
    Capability.O2_FLOAT16: _FLOAT16,
    Capability.O3_FLOAT16: _FLOAT16,
    Capability.O2_BFLOAT16: _O2,
    Capability.O3_BFLOAT16: _O2,
    Capability.PEAK_BYTES: "a CPU has no device allocator of its own",
}


def reason_against_static(capability: Capability, device: str) -> str | None:
    """Why static mode does not support `capability` on `device`, None if it does."""
    return _REASONS.get(capability) or (_ON_CPU.get(capability) if device == "cpu" else None)
