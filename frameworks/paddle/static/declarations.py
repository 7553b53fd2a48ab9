"""Unsupported capabilities of Paddle's static graph on a device, with reasons and attempts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from paddle.base import core

from frameworks.contract import Attempt, Capability
from frameworks.paddle.core.settings import own_name
from frameworks.paddle.framework import refused_in_both_graphs
from frameworks.paddle.quantization import NO_PRODUCTS
from frameworks.paddle.static import attempts
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
_GROUPS = "in static mode minimize raises TypeError for a parameter group"
_OFFLOADED = f"fleet's recompute_configs have enable_offload, and {_FLEET}"
_OFFLOADED_CHECKPOINTS: dict[str, Any] = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["x"], "enable_offload": True, "checkpoint_shape": [1, 1]},
}
_OFFLOADED_MOMENTS: dict[str, Any] = {"sharding": True, "sharding_configs": {"optimize_offload": True}}

_REFUSED: dict[Capability, tuple[str, tuple[Any, ...]]] = {
    Capability.TENSOR_RATE: (
        "an optimizer raises TypeError for a tensor as learning rate, also in a program",
        (attempts.tensor_rate,),
    ),
    Capability.GROUPS: (_GROUPS, (attempts.groups,)),
    Capability.GROUP_RATES: (_GROUPS, (attempts.groups,)),
    Capability.EXPLICIT_UNSCALE: (_UNSCALE, (attempts.explicit_unscale,)),
    Capability.SECOND_UNSCALE: (_UNSCALE, (attempts.explicit_unscale,)),
    Capability.TWO_LOSSES: (_TWO_LOSSES, (attempts.two_losses,)),
    Capability.ACCUMULATION: (_MERGE, (attempts.merged_gradients,)),
    Capability.PARTIAL_WINDOW: (_MERGE, (attempts.merged_gradients,)),
    Capability.RECOMPUTE: (_RECOMPUTE, (attempts.recompute_operations,)),
    Capability.RECOMPUTE_NESTED: (_RECOMPUTE, (attempts.recompute_operations,)),
    Capability.RECOMPUTE_CASES: (_RECOMPUTE, (attempts.recompute_operations,)),
    Capability.SEGMENT_CALLS: (_PYTHON, (attempts.segment_calls,)),
    Capability.AVERAGE: ("in programs of the new IR ExponentialMovingAverage raises TypeError", (attempts.average,)),
    Capability.SAVED_BYTES: (
        "forward and backward are one program, which does not stop between the two",
        (attempts.saved_bytes,),
    ),
    Capability.OFFLOAD_ACTIVATIONS: (_OFFLOADED, (attempts.fleet_offload, _OFFLOADED_CHECKPOINTS)),
    Capability.OFFLOAD_HOST: (_OFFLOADED, (attempts.fleet_offload, _OFFLOADED_CHECKPOINTS)),
    Capability.OFFLOAD_OPTIMIZER: (
        f"fleet's sharding_configs have optimize_offload, and {_FLEET}",
        (attempts.fleet_offload, _OFFLOADED_MOMENTS),
    ),
    Capability.OFFLOAD_PARAMETERS: (
        "group_sharded_parallel, the only call that offloads parameters, asserts a GPU, an XPU or a custom device, and "
        "wraps layers of the dynamic graph",
        (attempts.sharded_parameters,),
    ),
    Capability.OFFLOAD_DISK: (
        "saved_tensors_hooks, by which dynamic mode writes what is kept to files, sees no program",
        (attempts.saved_tensors,),
    ),
    Capability.INT8_ROW: (_CHANNELS, (attempts.channel_codes,)),
    Capability.INT8_COLUMN: (_CHANNELS, (attempts.channel_codes,)),
    Capability.FAKE_INT8_COLUMN: (_CHANNELS, (attempts.qat_program, {"weight_quantize_type": "channel_wise_abs_max"})),
    Capability.UINT8_TENSOR: (
        "quant_aware, whose configuration names uint8, takes int8 alone",
        (attempts.qat_program, {"dtype": "uint8"}),
    ),
    Capability.QAT: (_QAT, (attempts.qat_layers,)),
    Capability.CONVERT: (_QAT, (attempts.qat_layers,)),
    Capability.INTEGER_PRODUCTS: (NO_PRODUCTS, (attempts.integer_product,)),
    Capability.FLOAT8_E4M3FN: (_NO_CODES, (attempts.narrow_codes, "float8_e4m3fn")),
    Capability.FLOAT8_E5M2: (_NO_CODES, (attempts.narrow_codes, "float8_e5m2")),
}
"""Refused capabilities: the reason, and the function of `attempts` with its arguments."""

_ATTEMPTS: dict[Capability, tuple[Any, ...]] = {capability: call for capability, (_, call) in _REFUSED.items()} | {
    Capability.O1_FLOAT16: (attempts.casts, "O1", "float16"),
    Capability.O1_BFLOAT16: (attempts.casts, "O1", "bfloat16"),
    Capability.O2_FLOAT16: (attempts.low_weights, "float16", True),
    Capability.O2_BFLOAT16: (attempts.low_weights, "bfloat16", True),
    Capability.O3_FLOAT16: (attempts.low_weights, "float16", False),
    Capability.O3_BFLOAT16: (attempts.low_weights, "bfloat16", False),
    Capability.TF32: (attempts.tf32,),
    Capability.AUTOCAST_SCOPE: (attempts.casts, "O1", "bfloat16"),
    Capability.AUTOCAST_LISTS: (attempts.lists,),
    Capability.OPERATIONS: (attempts.operations,),
    Capability.DYNAMIC_SCALING: (attempts.dynamic_scaling,),
    Capability.STATIC_SCALING: (attempts.static_scaling,),
    Capability.SCALING_FACTORS: (attempts.scaling_factors,),
    Capability.PEAK_BYTES: (attempts.peak_bytes,),
}

_WITHOUT_ATTEMPTS: dict[Capability, str] = {
    **dict.fromkeys(
        (Capability.RANKS_OPTIMIZER, Capability.RANKS_GRADIENTS, Capability.RANKS_FULL, Capability.RANKS_HYBRID),
        _SHARDED,
    ),
    Capability.RANKS_LOW_REDUCTION: "all_reduce of a program raises TypeError for bfloat16",
    **dict.fromkeys(
        (Capability.INT8_TENSOR, Capability.FAKE_INT8_TENSOR, Capability.FAKE_INT4_TENSOR, Capability.STATIC_INT8),
        _QUANTIZATION,
    ),
}
"""Further refused capabilities, with the attempts of `frameworks.base`."""

_FLOAT16_LEVELS = (Capability.O1_FLOAT16, Capability.O2_FLOAT16, Capability.O3_FLOAT16)
_BFLOAT16_LEVELS = (Capability.O1_BFLOAT16, Capability.O2_BFLOAT16, Capability.O3_BFLOAT16)
_NO_BFLOAT16 = (
    "core.supports_bfloat16() says that this CPU lacks the instructions for bfloat16, which come with avx512f, and "
    "products of bfloat16 raise std::exception"
)

SEVERAL_OPTIMIZERS = (
    "ClipGradByGlobalNorm takes the norm of one optimizer's gradients, this recipe needs several optimizers, and "
    "clip_grad_norm_ raises RuntimeError in static mode"
)
"""The reason for not clipping a recipe with several optimizers."""

FROZEN_PRODUCTS = "on a CPU the process dies of the gradient of a bfloat16 product whose weight needs none"
"""The reason for not training a bfloat16 model with frozen weights."""

SCALED_FLOAT64 = (
    "under a GradScaler the static graph takes gradients in float32 and one low format only: minimize raises"
)
"""The reason for not training a model with a float64 head under a scaler."""


def refusals(device: str) -> dict[Capability, str]:
    """Unsupported capabilities of the static graph on a device, with reasons."""
    formats = dict.fromkeys(_FLOAT16_LEVELS, _FLOAT16) if device == "cpu" else {}
    if device == "cpu" and not core.supports_bfloat16():
        formats |= dict.fromkeys((Capability.AUTOCAST_SCOPE, *_BFLOAT16_LEVELS), _NO_BFLOAT16)
    reasons = {capability: reason for capability, (reason, _) in _REFUSED.items()}
    return formats | _WITHOUT_ATTEMPTS | reasons | REFUSED_IN_BOTH | refused_in_both_graphs(device)


def static_attempts(device: str) -> Mapping[Capability, Attempt]:
    """The attempts on a device."""
    return {capability: partial(acts, device, *call) for capability, call in _ATTEMPTS.items()}


def acts(device: str, function: Callable[..., None], *arguments: object) -> bool:
    """Returns whether a function of `frameworks.paddle.static.attempts` returns, for a program on the device.

    A crash is a failure like an exception.
    """
    return _returns(device, function.__name__, json.dumps(arguments))


@cache
def _returns(device: str, function: str, arguments: str) -> bool:
    server = _server(device)
    assert server.stdin
    assert server.stdout
    print(function, arguments, file=server.stdin, flush=True)
    status = int(server.stdout.readline())
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        raise TimeoutError(f"the attempt {function} did not end in time")
    return status == 0


@cache
def _server(device: str) -> subprocess.Popen[str]:
    program = f"from {attempts.__name__} import serve; serve()"
    command = [sys.executable, "-P", "-W", "ignore", "-c", program, own_name(device)]
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
