"""Unsupported capabilities of JAX with Flax, Optax and JMP, with reasons, and its conventions."""

from functools import cache

import jax
import numpy as np

from frameworks.base import OF_ONE_PLACE, OPTIONS
from frameworks.contract import Capability, Conventions, ScalerRule
from frameworks.jax.core.settings import JIT, PINNED_HOST, SHARDED
from frameworks.jax.training.optimizers import INITIAL, MINIMUM, REFUSED_OPTIONS

_SUPPORTED = OPTIONS | {
    Capability.FLOAT64_HEADS,
    Capability.OPERATIONS,
    Capability.STATIC_SCALING,
    Capability.SCALING_FACTORS,
    Capability.SCALING_DISABLED,
    Capability.EXPLICIT_UNSCALE,
    Capability.TWO_OPTIMIZERS,
    Capability.TWO_LOSSES,
    Capability.ACCUMULATION,
    Capability.PARTIAL_WINDOW,
    Capability.RECOMPUTE,
    Capability.RECOMPUTE_NESTED,
    Capability.RECOMPUTE_CASES,
    Capability.SEGMENT_CALLS,
    Capability.GROUPS,
    Capability.CLIP,
    Capability.SCHEDULE,
    Capability.AVERAGE,
    Capability.FOREACH,
    Capability.INTEGER_PRODUCTS,
    Capability.FLOAT8_PRODUCTS,
    Capability.LAYER_REUSE,
    Capability.TIED_WEIGHTS,
    Capability.USER_FUNCTION,
    Capability.FEED,
    Capability.CHECKPOINT,
}
_IN_ONE_PLACE = OF_ONE_PLACE | {Capability.LIVE_STATE, Capability.FLOAT8_TRAINING}


def capabilities_of(mode: str) -> frozenset[Capability]:
    """What this adapter has in a mode, unless `refusals` has it."""
    jit = {Capability.PLATEAU, Capability.FUNCTION_USES} if mode == JIT else frozenset[Capability]()
    return _SUPPORTED | jit | (frozenset() if mode == SHARDED else _IN_ONE_PLACE)


_REFUSED: dict[Capability, str] = {
    **REFUSED_OPTIONS,
    Capability.AUTOCAST_SCOPE: "JAX, Flax and JMP have no scope that casts what operations take: a Linen module is "
    "made with its dtype, and jax.default_matmul_precision sets how products round inside",
    Capability.AUTOCAST_LISTS: "a Linen module is made with its dtype; no list names operations",
    Capability.SECOND_UNSCALE: "JMP's unscale is a function of arrays, which do not tell whether they were unscaled "
    "before",
    Capability.OFFLOAD_DISK: "JAX's memory kinds are those of devices and of the host; none is a file",
    Capability.MISSING_GRADIENTS: "jax.grad gives zeros for a parameter that the loss does not reach, never nothing, "
    "and optax.apply_updates takes no None",
}
_CPU_REFUSED: dict[Capability, str] = {
    Capability.PEAK_BYTES: "memory_stats of a CPU device is None: JAX keeps none of its allocator",
    Capability.OFFLOAD_ACTIVATIONS: "on a CPU a checkpoint policy that offloads, such as "
    "save_and_offload_only_these_names, moves nothing",
    Capability.TF32: "on a CPU jax.default_matmul_precision changes nothing by 'tensorfloat32', and 'TF32_TF32_F32' "
    "is refused",
}
_NO_HOST_MEMORY = dict.fromkeys(
    (Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER, Capability.OFFLOAD_HOST),
    "a CPU device of this release has no memory of the kind pinned_host",
)
_RANKS_REFUSED: dict[Capability, str] = {
    Capability.RANKS_LOW_REDUCTION: "under jax.jit the compiler places the reduction over the devices, in the format "
    "of the gradient, and no setting changes it: only jax.lax.psum in jax.shard_map adds up what a program has cast",
    Capability.RANKS_LOST: "the ranks are devices of one program in one process, which ends as a whole",
    Capability.RANKS_COLLECTIVES: "under jax.jit the compiler places the reductions and makes one of several, and a "
    "profile counts what it has made, not the gradients in it",
}
_NO_TF32 = "this GPU has no products in TensorFloat-32, which compute capability 8.0 brought"


@cache
def conventions(mode: str) -> Conventions:
    """What holds in a mode: in all but "nojit" a compiler sees more than one operation at a time."""
    return Conventions(
        adam_epsilon="outside",
        adam_correction="float32",
        momentum_rate="outside",
        amsgrad="corrected",
        adagrad_epsilon="inside",
        rmsprop_epsilon="inside",
        rmsprop_rate="inside",
        adafactor_rate="given",
        adafactor_decay="whole",
        muon_default_epsilon=1e-8,
        muon_nesterov="corrected",
        normalisation="low",
        variance="difference",
        running_variance="biased",
        clip_epsilon=0.0,
        nonfinite_micro_batch="drop-micro-batch",
        remainder="carry",
        static_skips=False,
        partial_overflow="skip-all",
        accumulates="unscaled",
        compiled=mode != "nojit",
        batch_statistics="whole",
        keeps_products=("dots_saveable",),
        scaler=ScalerRule(
            initial=INITIAL,
            growth=2.0,
            backoff=0.5,
            interval=2000,
            minimum=MINIMUM,
            maximum=float(np.finfo(np.float32).max),
            counts="updates",
            nonfinite="unscaled",
            latched=False,
        ),
    )


def refusals(device: jax.Device, mode: str) -> dict[Capability, str]:
    """Unsupported capabilities on this device and in this mode, with reasons."""
    if device.platform == "cpu":
        offloaded = {} if PINNED_HOST in {memory.kind for memory in device.addressable_memories()} else _NO_HOST_MEMORY
        return _REFUSED | _CPU_REFUSED | offloaded | ({} if mode == "nojit" else _RANKS_REFUSED)
    return _REFUSED | ({} if _has_tf32(device) else {Capability.TF32: _NO_TF32})


def _has_tf32(device: jax.Device) -> bool:
    """Decided by the compute capability of NVIDIA's GPUs, such as "9.0"."""
    major = str(getattr(device, "compute_capability", "")).partition(".")[0]
    return major.isdigit() and int(major) >= 8
