"""Unsupported capabilities of Paddle's static graph on a device, with reasons."""

from paddle.base import core

from frameworks.contract import Capability
from frameworks.paddle.declarations import refused_in_both_graphs
from frameworks.paddle.quantization import NO_PRODUCTS
from frameworks.paddle.training.optimizers import REFUSED_IN_BOTH

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

_SHARDED = "in programs of the new IR fleet's sharding raises TypeError, and group_sharded_parallel is for dynamic mode"

_FLEET = "in programs of the new IR every minimize of fleet's optimizers raises TypeError"
_CHANNELS = "quantization by channels takes programs, and raises AttributeError for those of the new IR"
_NO_CODES = "Tensor.view, which shows the codes, is for dynamic mode, and an executor has no kernel that fetches float8"
_QAT = (
    "a fake quantizer of QAT trains in a program, and raises PreconditionNotMet in one for evaluation; quant_aware "
    "raises AttributeError for programs of the new IR"
)
_MORE: dict[Capability, str] = {
    Capability.TENSOR_RATE: "an optimizer raises TypeError for a tensor as learning rate, also in a program",
    Capability.GROUP_RATES: "in static mode minimize raises TypeError for a parameter group",
    Capability.OFFLOAD_ACTIVATIONS: f"fleet's recompute_configs have enable_offload, and {_FLEET}",
    Capability.OFFLOAD_HOST: f"fleet's recompute_configs have enable_offload, and {_FLEET}",
    Capability.OFFLOAD_OPTIMIZER: f"fleet's sharding_configs have optimize_offload, and {_FLEET}",
    Capability.OFFLOAD_PARAMETERS: "group_sharded_parallel, the only call that offloads parameters, asserts a GPU, an "
    "XPU or a custom device, and wraps layers of the dynamic graph",
    Capability.OFFLOAD_DISK: "saved_tensors_hooks, by which dynamic mode writes what is kept to files, sees no program",
    Capability.INT8_ROW: _CHANNELS,
    Capability.INT8_COLUMN: _CHANNELS,
    Capability.FAKE_INT8_COLUMN: _CHANNELS,
    Capability.UINT8_TENSOR: "quant_aware, whose configuration names uint8, takes int8 alone",
    Capability.QAT: _QAT,
    Capability.CONVERT: _QAT,
    Capability.INTEGER_PRODUCTS: NO_PRODUCTS,
    Capability.FLOAT8_E4M3FN: _NO_CODES,
    Capability.FLOAT8_E5M2: _NO_CODES,
}

_RANKS: dict[Capability, str] = {
    Capability.RANKS_OPTIMIZER: _SHARDED,
    Capability.RANKS_GRADIENTS: _SHARDED,
    Capability.RANKS_FULL: _SHARDED,
    Capability.RANKS_HYBRID: _SHARDED,
    Capability.RANKS_LOW_REDUCTION: "all_reduce of a program raises TypeError for bfloat16",
}

_REASONS: dict[Capability, str] = {
    **_RANKS,
    **_MORE,
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

FROZEN_PRODUCTS = "on a CPU the process dies of the gradient of a bfloat16 product whose weight needs none"
"""Why a bfloat16 model is not trained with frozen weights."""

SCALED_FLOAT64 = (
    "under a GradScaler the static graph takes gradients in float32 and one low format only: minimize raises"
)
"""Why a model with a float64 head is not trained under a scaler."""


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities of the static graph on a device, with reasons."""
    here = _ON_CPU if device == "cpu" else {}
    if device == "cpu" and not core.supports_bfloat16():
        here = here | _WITHOUT_BFLOAT16
    return here | _REASONS | REFUSED_IN_BOTH | refused_in_both_graphs(device)
