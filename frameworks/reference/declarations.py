"""Unsupported capabilities of the reference, and its default conventions."""

from __future__ import annotations

from frameworks.contract import Capability, Conventions, ScalerRule

CONVENTIONS = Conventions(scaler=ScalerRule(minimum=2.0**-14, maximum=2.0**127, latched=False))

VARIANTS = ("default",)
"""Recomputation variants."""

REFUSALS = {
    Capability.PEAK_BYTES: "the reference has no device allocator",
    Capability.TF32: "the reference multiplies in float64 and rounds what comes out",
}

LACKING = frozenset(
    {
        Capability.SINGLE,
        Capability.FOREACH,
        Capability.FUSED,
        Capability.CAPTURABLE,
        Capability.TENSOR_RATE,
        Capability.STEP_HOOKS,
        Capability.SHIPPED_LAYERS,
        Capability.LIBRARY_REQUESTS,
        Capability.DATA_POSITION,
    }
)
"""The reference is no library of kernels, layers or loaders; it offers every other capability."""

LACKING_IN_RANKS = frozenset(
    {
        Capability.FREEZE,
        Capability.FLOAT8_TRAINING,
        Capability.QAT,
        Capability.CONVERT,
        Capability.SAVED_BYTES,
        Capability.TRACE,
        Capability.LOAD_ORDER,
        Capability.LIVE_STATE,
    }
)
"""What it does not offer where every recipe has ranks."""

WHOLE_BLOCKS = "blocks of a shard are not those of the whole parameter, so 8-bit moments are not sharded"
"""Why sharded optimizer state excludes 8-bit Adam."""
