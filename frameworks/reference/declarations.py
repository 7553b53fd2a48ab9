"""What the reference does not do, and its conventions where nobody gives it a framework's."""

from __future__ import annotations

from frameworks.contract import Capability, Conventions, ScalerRule

CONVENTIONS = Conventions(scaler=ScalerRule(minimum=2.0**-14, maximum=2.0**127, latched=False))

VARIANTS = ("default",)
"""Recomputation variants."""

REFUSALS = {
    Capability.PEAK_BYTES: "the reference has no device allocator",
    Capability.TF32: "the reference multiplies in float64 and rounds what comes out",
}
