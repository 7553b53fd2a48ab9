"""What JAX with Flax, Optax and JMP does not do, with a reason for each, and its conventions."""

from __future__ import annotations

import jax
import numpy as np

from frameworks.base import NO_TF32
from frameworks.contract import SUPPORTED, Capability, Conventions, Declaration, ScalerRule
from frameworks.jax.scaling import INITIAL

_REFUSED: dict[Capability, str] = {
    Capability.AUTOCAST_SCOPE: "JAX has no scope of precision; a Linen module is made with its dtype",
    Capability.AUTOCAST_LISTS: "a Linen module is made with its dtype; no list names operations",
    Capability.SCALING_FACTORS: "jmp.DynamicLossScale multiplies and divides by one and the same whole factor",
    Capability.PARTIAL_WINDOW: "optax.MultiSteps has no flush; an incomplete window is carried over",
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a parameter that the loss does not reach, never nothing",
    Capability.SEGMENT_CALLS: "a segment is traced once; what runs afterwards is no Python that could count",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "JAX keeps no memory statistics of the CPU",
    Capability.TF32: NO_TF32,
}

CONVENTIONS = Conventions(
    adam_epsilon="outside",
    adam_correction="float32",
    momentum_rate="outside",
    running_variance="biased",
    clip_epsilon=0.0,
    nonfinite_micro_batch="drop-micro-batch",
    remainder="carry",
    partial_overflow="skip-all",
    scaler=ScalerRule(
        initial=INITIAL,
        growth=2.0,
        backoff=0.5,
        interval=2000,
        minimum=1.0,
        maximum=float(np.finfo(np.float32).max),
        counts="micro-batches",
        nonfinite="unscaled",
        latched=False,
    ),
)


def declaration(capability: Capability, device: jax.Device) -> Declaration:
    """Supported on this device, or the reason why not."""
    if device.platform == "cpu":
        refused = _REFUSED | _CPU_REFUSED
    else:
        refused = _REFUSED | ({} if _has_tf32(device) else {Capability.TF32: NO_TF32})
    return Declaration(False, refused[capability]) if capability in refused else SUPPORTED


def _has_tf32(device: jax.Device) -> bool:
    """By the compute capability, such as "9.0", which JAX tells of NVIDIA's GPUs."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdigit() and int(major) >= 8
