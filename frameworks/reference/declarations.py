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

WHOLE_BLOCKS = "blocks of a shard are not those of the whole parameter, so 8-bit moments are not sharded"
"""Why sharded optimizer state excludes 8-bit Adam."""
