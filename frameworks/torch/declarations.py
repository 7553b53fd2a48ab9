"""PyTorch's unsupported capabilities with reasons, and its conventions."""

import torch

from frameworks.base import OPTIONS
from frameworks.contract import Capability, Conventions, ScalerRule
from frameworks.torch.core import settings
from frameworks.torch.core.settings import MODES, multiplies_in_tf32
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.quantization import torchao_models, transformers_models
from frameworks.torch.training import optimizers
from frameworks.torch.training.optimizers import NOT_CAPTURABLE, REFUSED_OPTIONS

NO_MASTERS = (
    "without torch.distributed, whose fully_shard casts float32 shards, PyTorch has no low model with float32 masters"
)
TRAINING = frozenset(
    {
        Capability.O1_FLOAT16,
        Capability.O1_BFLOAT16,
        Capability.O3_FLOAT16,
        Capability.O3_BFLOAT16,
        Capability.DYNAMIC_SCALING,
        Capability.FLOAT64_HEADS,
        Capability.STATIC_SCALING,
        Capability.SCALING_FACTORS,
        Capability.SCALING_DISABLED,
        Capability.EXPLICIT_UNSCALE,
        Capability.SECOND_UNSCALE,
        Capability.TWO_OPTIMIZERS,
        Capability.TWO_LOSSES,
        Capability.ACCUMULATION,
        Capability.PARTIAL_WINDOW,
        Capability.RECOMPUTE,
        Capability.RECOMPUTE_NESTED,
        Capability.SEGMENT_CALLS,
        Capability.GROUPS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.MISSING_GRADIENTS,
        Capability.AVERAGE,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.SAVED_BYTES,
    }
)
"""Capabilities of every training loop, with a library or without."""
_ALONE = TRAINING | {
    Capability.AUTOCAST_SCOPE,
    Capability.OPERATIONS,
    Capability.RECOMPUTE_CASES,
    Capability.LAYER_REUSE,
    Capability.TIED_WEIGHTS,
    Capability.USER_FUNCTION,
}
_IN_EAGER = frozenset(
    {
        Capability.PLATEAU,
        Capability.FUNCTION_USES,
        Capability.SAVED_VALUES,
        Capability.BACKGROUND_SAVES,
        Capability.RANKS_TENSOR,
        Capability.RANKS_SEQUENCE,
        Capability.RANKS_PIPELINE,
    }
)
"""Capabilities of mode "eager" alone: other modes would repeat them."""
_IN_ONE_PLACE = frozenset({Capability.FREEZE, Capability.LIVE_STATE, Capability.LOAD_ORDER, Capability.STEP_HOOKS})


def capabilities_of(mode: str, *, ranks: bool) -> frozenset[Capability]:
    """Capabilities of PyTorch without a library in a mode, with ranks in every recipe or not, before `refusals`."""
    if mode == deepspeed_start.MODE:
        return _ALONE - {Capability.SAVED_BYTES}
    eager = _IN_EAGER if mode == "eager" else frozenset[Capability]()
    return _ALONE | optimizers.OPTIMIZERS | OPTIONS | eager | (frozenset() if ranks else _IN_ONE_PLACE)


_REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.O2_FLOAT16: NO_MASTERS,
    Capability.O2_BFLOAT16: NO_MASTERS,
    Capability.OFFLOAD_PARAMETERS: "parameters leave with fully_shard's CPUOffloadPolicy alone, which wants a process "
    "group",
    Capability.AUTOCAST_LISTS: "torch.autocast takes no lists: which operations it casts is compiled into each backend",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "PyTorch's allocator for the CPU keeps no peak",
    Capability.OFFLOAD_HOST: "where the device is the CPU, save_on_cpu keeps the very tensor",
    Capability.CAPTURABLE: NOT_CAPTURABLE,
    Capability.TF32: "on this processor float32 products keep their operands, whatever float32_matmul_precision says",
}
_NO_SHARDS = dict.fromkeys(
    (Capability.RANKS_GRADIENTS, Capability.RANKS_FULL, Capability.RANKS_HYBRID, Capability.RANKS_RESHAPE),
    "before PyTorch 2.7 fully_shard raises on a CPU, whose Stream has no record_event",
)
_BEFORE_AMPERE = "TensorFloat-32 products need a GPU of compute capability 8.0 or above"
_WITHOUT_TF32 = "on this device float32 products keep their operands, whatever float32_matmul_precision says"
_NO_PEAK = "PyTorch's module of this device has no peak of its allocator that can be reset"

_COMPILED = "a compiled graph lets no hook inside it take a gradient out, so no layer's is shown"
_REFUSED_IN_MODE: dict[str, dict[Capability, str]] = {
    **{mode: {Capability.TRACE: _COMPILED} for mode in MODES},
    "ddp": {
        Capability.TWO_LOSSES: "DDP takes a second backward pass through one forward pass for a parameter that is ready"
        " twice, and raises"
    },
    "fsdp1": {
        Capability.TWO_LOSSES: "FullyShardedDataParallel frees gathered parameters with the first backward pass"
        " through a forward pass, and the second raises",
        Capability.MISSING_GRADIENTS: "FullyShardedDataParallel gives a parameter zeros, never nothing, where another"
        " of its flat tensor has a gradient",
    },
}


def conventions(mode: str) -> Conventions:
    """PyTorch's conventions; in compiled modes all variants of recomputation have one implementation."""
    compiled = mode in MODES
    return Conventions(
        plateau_signed=True,
        pipeline_scaling="mean-each-step",
        normalisation="low" if mode == deepspeed_start.MODE else "batch",
        adam_epsilon="outside",
        adafactor_epsilon="floor",
        adafactor_default_epsilon=None,
        muon_products="bfloat16",
        muon_epsilon="floor",
        momentum_rate="outside",
        running_variance="unbiased",
        clip_epsilon=1e-6,
        clip_norm="all",
        nonfinite_micro_batch="drop-window",
        remainder="flush",
        partial_overflow="skip-overflowing",
        accumulates="scaled",
        compiled=compiled,
        gradient_input=() if compiled else ("reentrant",),
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


def refusals(device: str, mode: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device in this mode, with reasons."""
    refused = {**_REFUSED, **(_CPU_REFUSED if device == "cpu" else _refused_on(device))}
    if not optimizers.is_installed() and mode not in ("fsdp1", deepspeed_start.MODE):
        refused[Capability.ADAM_8BIT] = optimizers.NOT_INSTALLED
    for library in (torchao_models, transformers_models):
        if mode == library.MODE:
            refused |= library.find_refusals()
    if mode in ("fsdp", "fsdp1", deepspeed_start.MODE):
        refused = {c: reason for c, reason in refused.items() if reason != NO_MASTERS}
    if mode == deepspeed_start.MODE:
        refused |= deepspeed_start.find_refusals()
    if device == "cpu" and torch.__version__ < (2, 7) and mode not in ("ddp", "fsdp1", deepspeed_start.MODE):
        refused |= _NO_SHARDS
    if mode in MODES:
        refused.pop(Capability.OFFLOAD_HOST, None)
    return refused | _REFUSED_IN_MODE.get(mode, {})


def _refused_on(accelerator: str) -> dict[Capability, str]:
    refused = {} if settings.has_peak(accelerator) else {Capability.PEAK_BYTES: _NO_PEAK}
    if accelerator == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        refused[Capability.TF32] = _BEFORE_AMPERE
    elif accelerator != "cuda" and not multiplies_in_tf32(accelerator):
        refused[Capability.TF32] = _WITHOUT_TF32
    return refused
