"""What PyTorch does and does not do, with a reason for each that it does not, and its conventions."""

from __future__ import annotations

import torch

from frameworks.base import NO_TF32
from frameworks.contract import SUPPORTED, Capability, Conventions, Declaration, ScalerRule

_O2 = "PyTorch ships no low-precision model with float32 masters; torch.amp keeps the model in float32"
_REFUSED: dict[Capability, str] = {
    Capability.O2_FLOAT16: _O2,
    Capability.O2_BFLOAT16: _O2,
    Capability.AUTOCAST_LISTS: "torch.autocast's lists of operations are fixed in each backend",
    Capability.STATIC_SCALING: "torch.amp has no constant loss scale; GradScaler always adjusts its own",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "PyTorch's allocator for the CPU keeps no peak",
    Capability.TF32: NO_TF32,
}
_COMPILE_REFUSED: dict[Capability, str] = {
    Capability.SEGMENT_CALLS: "a compiled forward runs no Python that could count",
    Capability.TWO_LOSSES: "a compiled graph gives its buffers away, so that its backward refuses retain_graph",
    Capability.RECOMPUTE_CASES: "this adapter runs the cases without torch.compile, so that mode eager tells of them",
}

CONVENTIONS = Conventions(
    adam_epsilon="outside",
    momentum_rate="outside",
    running_variance="unbiased",
    clip_epsilon=1e-6,
    nonfinite_micro_batch="drop-window",
    remainder="flush",
    partial_overflow="skip-overflowing",
    scaler=ScalerRule(
        initial=2.0**16,
        growth=2.0,
        backoff=0.5,
        interval=2000,
        minimum=0.0,
        maximum=float(torch.finfo(torch.float32).max),
        counts="updates",
        nonfinite="scaled",
        latched=True,
    ),
)


def declaration(capability: Capability, device: str, mode: str) -> Declaration:
    """Supported on this device in this mode, or the reason why not."""
    refused = {
        **_REFUSED,
        **(_CPU_REFUSED if device == "cpu" else _before_tf32()),
        **(_COMPILE_REFUSED if mode == "compile" else {}),
    }
    return Declaration(False, refused[capability]) if capability in refused else SUPPORTED


def _before_tf32() -> dict[Capability, str]:
    return {} if torch.cuda.get_device_capability() >= (8, 0) else {Capability.TF32: NO_TF32}
