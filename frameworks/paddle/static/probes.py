"""Attempts of the static graph, by capability."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from frameworks.contract import Attempt, Capability
from frameworks.paddle.core.devices import own_name
from frameworks.paddle.static.attempts import execution, refused, training

_ROOT = Path(__file__).parents[3]
_LIMIT_S = 120


class AttemptCall:
    """A function of `frameworks.paddle.static.attempts`, with its arguments after the program."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.words = f"{function.__module__}:{function.__name__}", json.dumps(arguments)


_OFFLOADED_CHECKPOINTS: dict[str, Any] = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["x"], "enable_offload": True, "checkpoint_shape": [1, 1]},
}
_OFFLOADED_MOMENTS: dict[str, Any] = {"sharding": True, "sharding_configs": {"optimize_offload": True}}

_ATTEMPTS: dict[Capability, AttemptCall] = {
    # supported
    Capability.O1_FLOAT16: AttemptCall(training.casts, "O1", "float16"),
    Capability.O1_BFLOAT16: AttemptCall(training.casts, "O1", "bfloat16"),
    Capability.O2_FLOAT16: AttemptCall(training.low_weights, "float16", True),
    Capability.O2_BFLOAT16: AttemptCall(training.low_weights, "bfloat16", True),
    Capability.O3_FLOAT16: AttemptCall(training.low_weights, "float16", False),
    Capability.O3_BFLOAT16: AttemptCall(training.low_weights, "bfloat16", False),
    Capability.TF32: AttemptCall(execution.tf32),
    Capability.AUTOCAST_SCOPE: AttemptCall(training.casts, "O1", "bfloat16"),
    Capability.AUTOCAST_LISTS: AttemptCall(training.lists),
    Capability.OPERATIONS: AttemptCall(execution.operations),
    Capability.DYNAMIC_SCALING: AttemptCall(training.dynamic_scaling),
    Capability.STATIC_SCALING: AttemptCall(training.static_scaling),
    Capability.SCALING_FACTORS: AttemptCall(training.scaling_factors),
    Capability.EXPLICIT_UNSCALE: AttemptCall(training.explicit_unscale),
    Capability.SECOND_UNSCALE: AttemptCall(training.explicit_unscale),
    Capability.TWO_LOSSES: AttemptCall(training.two_losses),
    Capability.ACCUMULATION: AttemptCall(execution.merged_gradients),
    Capability.PARTIAL_WINDOW: AttemptCall(execution.merged_gradients),
    Capability.RECOMPUTE: AttemptCall(execution.recomputed),
    Capability.RECOMPUTE_NESTED: AttemptCall(execution.recomputed),
    Capability.RECOMPUTE_CASES: AttemptCall(execution.recomputed),
    Capability.SEGMENT_CALLS: AttemptCall(execution.segment_calls),
    Capability.GROUPS: AttemptCall(training.groups),
    Capability.AVERAGE: AttemptCall(execution.average),
    Capability.SAVED_BYTES: AttemptCall(execution.saved_bytes),
    Capability.PEAK_BYTES: AttemptCall(execution.peak_bytes),
    # refused
    Capability.TENSOR_RATE: AttemptCall(refused.tensor_rate),
    Capability.GROUP_RATES: AttemptCall(training.groups),
    Capability.OFFLOAD_ACTIVATIONS: AttemptCall(refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_HOST: AttemptCall(refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_OPTIMIZER: AttemptCall(refused.fleet_offload, _OFFLOADED_MOMENTS),
    Capability.OFFLOAD_PARAMETERS: AttemptCall(refused.sharded_parameters),
    Capability.OFFLOAD_DISK: AttemptCall(refused.saved_tensors),
    Capability.INT8_ROW: AttemptCall(refused.channel_codes),
    Capability.INT8_COLUMN: AttemptCall(refused.channel_codes),
    Capability.FAKE_INT8_COLUMN: AttemptCall(refused.qat_program, {"weight_quantize_type": "channel_wise_abs_max"}),
    Capability.UINT8_TENSOR: AttemptCall(refused.qat_program, {"dtype": "uint8"}),
    Capability.QAT: AttemptCall(refused.qat_layers),
    Capability.CONVERT: AttemptCall(refused.qat_layers),
    Capability.INTEGER_PRODUCTS: AttemptCall(refused.integer_product),
    Capability.FLOAT8_E4M3FN: AttemptCall(refused.narrow_codes, "float8_e4m3fn"),
    Capability.FLOAT8_E5M2: AttemptCall(refused.narrow_codes, "float8_e5m2"),
}


def static_attempts(device: str) -> Mapping[Capability, Attempt]:
    """The attempts on a device; a crash is a failure like an exception."""
    return {capability: partial(_acts, *call.words, device) for capability, call in _ATTEMPTS.items()}


@cache
def _acts(function: str, arguments: str, device: str) -> bool:
    module = "frameworks.paddle.static.attempts"
    command = [sys.executable, "-W", "ignore", "-m", module, own_name(device), function, arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH")))),
    }
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=_LIMIT_S, check=False)
    return ended.returncode == 0


def scales_after_bfloat16(device: str) -> bool:
    """Whether a `GradScaler` scales after a bfloat16 scope."""
    return _acts(*AttemptCall(training.scales_after_bfloat16).words, device)


def clips_jointly(device: str) -> bool:
    """Whether two optimizers clip by the norm of all their gradients."""
    return _acts(*AttemptCall(training.clips_jointly).words, device)


def scales_float64(device: str) -> bool:
    """Whether a `GradScaler` takes gradients of a float64 parameter."""
    return _acts(*AttemptCall(training.scales_float64).words, device)


def trains_beside_constants(device: str) -> bool:
    """Whether a bfloat16 model trains together with a weight that needs no gradient."""
    return _acts(*AttemptCall(training.trains_next_to_constants).words, device)
