"""Unsupported capabilities of Paddle's dynamic graph and of both graphs, with reasons."""

import paddle

from frameworks.base import OF_ONE_PLACE
from frameworks.contract import Capability
from frameworks.paddle.core.settings import DATA_PARALLEL, DYGRAPH

IN_BOTH_GRAPHS = frozenset(
    {
        Capability.FLOAT64_HEADS,
        Capability.SCALING_DISABLED,
        Capability.TWO_OPTIMIZERS,
        Capability.CLIP,
        Capability.SCHEDULE,
        Capability.PLATEAU,
        Capability.MISSING_GRADIENTS,
        Capability.FOREACH,
        Capability.NESTEROV,
        Capability.COUPLED_DECAY,
        Capability.DECAY_EXCLUDED,
        Capability.FROZEN,
        Capability.FREEZE,
        Capability.AMSGRAD,
        Capability.ADAGRAD,
        Capability.RMSPROP,
        Capability.INTEGER_CASTS,
        Capability.LAYER_REUSE,
        Capability.TIED_WEIGHTS,
        Capability.USER_FUNCTION,
        Capability.FUNCTION_USES,
        Capability.FEED,
        Capability.CHECKPOINT,
        Capability.TRACE,
        Capability.LOAD_ORDER,
        Capability.LIVE_STATE,
    }
)
"""What either graph has without ranks."""
_DYGRAPH = IN_BOTH_GRAPHS | {
    Capability.TWO_LOSSES,
    Capability.ACCUMULATION,
    Capability.PARTIAL_WINDOW,
    Capability.RECOMPUTE,
    Capability.RECOMPUTE_NESTED,
    Capability.RECOMPUTE_CASES,
    Capability.SEGMENT_CALLS,
    Capability.GROUPS,
    Capability.GROUP_RATES,
    Capability.SAVED_BYTES,
}
_OF_ONE_MODE = {Capability.PLATEAU, Capability.FUNCTION_USES}
_IN_ONE_PLACE = OF_ONE_PLACE | {
    Capability.FROZEN,
    Capability.FREEZE,
    Capability.GROUP_RATES,
    Capability.LOAD_ORDER,
    Capability.LIVE_STATE,
}


def capabilities_of(mode: str) -> frozenset[Capability]:
    """What the dynamic graph has in a mode, unless `refusals` has it."""
    if mode == DYGRAPH:
        return _DYGRAPH
    return _DYGRAPH - _OF_ONE_MODE - (_IN_ONE_PLACE if mode == DATA_PARALLEL else frozenset())


PRECISIONS = {c for c in Capability if c.startswith("precision.O")}
SCOPES = {Capability.AUTOCAST_SCOPE, Capability.AUTOCAST_LISTS}
SCALING = {
    Capability.DYNAMIC_SCALING,
    Capability.STATIC_SCALING,
    Capability.SCALING_FACTORS,
    Capability.EXPLICIT_UNSCALE,
    Capability.SECOND_UNSCALE,
}

_TF32_ON_CPU = "Paddle's switches for TensorFloat-32 are those of cuBLAS and cuDNN, which a CPU does not use"
_TF32_BEFORE = "TensorFloat-32 is a format of NVIDIA's GPUs from compute capability 8.0 on"
_KERNELS = "kernels are registered by device and format, and several operations have none for a low-precision one"
_SCOPE_ON_CPU = "on a CPU auto_cast in dynamic mode warns that it makes no effect"
_LOW_MODEL_ON_CPU = (
    "on a CPU amp.decorate in dynamic mode returns the model unchanged, and products of a model that Layer.to makes "
    "low raise: matmul has no low-precision kernel there"
)
_SCALER_ON_CPU = "on a CPU GradScaler in dynamic mode warns and disables itself"
_AVERAGE = "ExponentialMovingAverage raises in dynamic mode, and ModelAverage weighs the updates of a window equally"
_SHARDED_ON_CPU = (
    "group_sharded_parallel, by which dynamic mode shards, takes a GPU, an XPU or a custom device and asserts that"
)
_OWN_FORMAT = "DataParallel adds gradients up in their own format, and takes no hook that would change it"
NO_COUNT = "DataParallel reduces in C++ and neither counts its reductions nor takes a hook that could"
_GPU_KERNELS: dict[Capability, str] = {
    Capability.LOAD_INT8: "llm_int8_linear, by which Paddle multiplies 8-bit weights, has a kernel for GPUs alone",
    Capability.WEIGHT_INT8: "weight_quantize and weight_only_linear have kernels for GPUs alone",
    Capability.WEIGHT_INT4: "weight_quantize and weight_only_linear have kernels for GPUs alone",
    Capability.FLOAT8_PRODUCTS: "fp8_fp8_half_gemm_fused has a kernel for GPUs alone, and matmul none for float8",
}
GROUPS = "GroupWiseWeightObserver has groups of 128 rows alone, whatever its group_size"
_PEAK_ON_CPU = "paddle.device.max_memory_allocated, Paddle's call for it, raises on a CPU"
_RANKS: dict[Capability, str] = {
    Capability.RANKS_OPTIMIZER: _SHARDED_ON_CPU,
    Capability.RANKS_GRADIENTS: _SHARDED_ON_CPU,
    Capability.RANKS_FULL: _SHARDED_ON_CPU,
    Capability.RANKS_HYBRID: _SHARDED_ON_CPU,
    Capability.RANKS_LOW_REDUCTION: _OWN_FORMAT,
    Capability.RANKS_COLLECTIVES: NO_COUNT,
}
_OFFLOAD = dict.fromkeys((Capability.OFFLOAD_PARAMETERS, Capability.OFFLOAD_OPTIMIZER), _SHARDED_ON_CPU)


def refused_in_both_graphs(device: str) -> dict[Capability, str]:
    """Unsupported capabilities of both graphs on a device, with reasons."""
    reasons = {Capability.OPERATIONS: _KERNELS, Capability.INT4_GROUP: GROUPS}
    if device == "cpu":
        return reasons | {Capability.TF32: _TF32_ON_CPU, Capability.PEAK_BYTES: _PEAK_ON_CPU} | _GPU_KERNELS
    ampere = device == "cuda" and paddle.device.cuda.get_device_capability() >= (8, 0)
    return reasons if ampere else reasons | {Capability.TF32: _TF32_BEFORE}


def refusals(device: str, *, forced: bool) -> dict[Capability, str]:
    """Unsupported capabilities of the dynamic graph on a device, with reasons; `forced` drives the scaler on a CPU."""
    reasons = {Capability.AVERAGE: _AVERAGE}
    if device == "cpu":
        reasons |= dict.fromkeys(PRECISIONS, _LOW_MODEL_ON_CPU)
        reasons |= dict.fromkeys((Capability.O1_FLOAT16, Capability.O1_BFLOAT16, *SCOPES), _SCOPE_ON_CPU)
        reasons |= {} if forced else dict.fromkeys(SCALING, _SCALER_ON_CPU)
        reasons |= _RANKS | _OFFLOAD
    return reasons | refused_in_both_graphs(device)
