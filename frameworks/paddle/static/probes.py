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


class Attempted:
    """A function of `frameworks.paddle.static.attempts`, with its arguments after the program."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.words = f"{function.__module__}:{function.__name__}", json.dumps(arguments)


_OFFLOADED_CHECKPOINTS: dict[str, Any] = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["x"], "enable_offload": True, "checkpoint_shape": [1, 1]},
}
_OFFLOADED_MOMENTS: dict[str, Any] = {"sharding": True, "sharding_configs": {"optimize_offload": True}}

_ATTEMPTS: dict[Capability, Attempted] = {
    # supported
    Capability.O1_FLOAT16: Attempted(training.casts, "O1", "float16"),
    Capability.O1_BFLOAT16: Attempted(training.casts, "O1", "bfloat16"),
    Capability.O2_FLOAT16: Attempted(training.low_weights, "float16", True),
    Capability.O2_BFLOAT16: Attempted(training.low_weights, "bfloat16", True),
    Capability.O3_FLOAT16: Attempted(training.low_weights, "float16", False),
    Capability.O3_BFLOAT16: Attempted(training.low_weights, "bfloat16", False),
    Capability.TF32: Attempted(execution.tf32),
    Capability.AUTOCAST_SCOPE: Attempted(training.casts, "O1", "bfloat16"),
    Capability.AUTOCAST_LISTS: Attempted(training.lists),
    Capability.OPERATIONS: Attempted(execution.operations),
    Capability.DYNAMIC_SCALING: Attempted(training.dynamic_scaling),
    Capability.STATIC_SCALING: Attempted(training.static_scaling),
    Capability.SCALING_FACTORS: Attempted(training.scaling_factors),
    Capability.EXPLICIT_UNSCALE: Attempted(training.explicit_unscale),
    Capability.SECOND_UNSCALE: Attempted(training.explicit_unscale),
    Capability.TWO_LOSSES: Attempted(training.two_losses),
    Capability.ACCUMULATION: Attempted(execution.merged_gradients),
    Capability.PARTIAL_WINDOW: Attempted(execution.merged_gradients),
    Capability.RECOMPUTE: Attempted(execution.recomputed),
    Capability.RECOMPUTE_NESTED: Attempted(execution.recomputed),
    Capability.RECOMPUTE_CASES: Attempted(execution.recomputed),
    Capability.SEGMENT_CALLS: Attempted(execution.segment_calls),
    Capability.GROUPS: Attempted(training.groups),
    Capability.AVERAGE: Attempted(execution.average),
    Capability.SAVED_BYTES: Attempted(execution.saved_bytes),
    Capability.PEAK_BYTES: Attempted(execution.peak_bytes),
    # refused
    Capability.TENSOR_RATE: Attempted(refused.tensor_rate),
    Capability.GROUP_RATES: Attempted(training.groups),
    Capability.OFFLOAD_ACTIVATIONS: Attempted(refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_HOST: Attempted(refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_OPTIMIZER: Attempted(refused.fleet_offload, _OFFLOADED_MOMENTS),
    Capability.OFFLOAD_PARAMETERS: Attempted(refused.sharded_parameters),
    Capability.OFFLOAD_DISK: Attempted(refused.saved_tensors),
    Capability.INT8_ROW: Attempted(refused.channel_codes),
    Capability.INT8_COLUMN: Attempted(refused.channel_codes),
    Capability.FAKE_INT8_COLUMN: Attempted(refused.aware_program, {"weight_quantize_type": "channel_wise_abs_max"}),
    Capability.UINT8_TENSOR: Attempted(refused.aware_program, {"dtype": "uint8"}),
    Capability.AWARE: Attempted(refused.aware_layers),
    Capability.CONVERT: Attempted(refused.aware_layers),
    Capability.INTEGER_PRODUCTS: Attempted(refused.integer_product),
    Capability.FLOAT8_E4M3FN: Attempted(refused.narrow_codes, "float8_e4m3fn"),
    Capability.FLOAT8_E5M2: Attempted(refused.narrow_codes, "float8_e5m2"),
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
    return _acts(*Attempted(training.scales_after_bfloat16).words, device)


def clips_jointly(device: str) -> bool:
    """Whether two optimizers clip by the norm of all their gradients."""
    return _acts(*Attempted(training.clips_jointly).words, device)


def scales_float64(device: str) -> bool:
    """Whether a `GradScaler` takes gradients of a float64 parameter."""
    return _acts(*Attempted(training.scales_float64).words, device)


def trains_beside_constants(device: str) -> bool:
    """Whether a bfloat16 model trains together with a weight that needs no gradient."""
    return _acts(*Attempted(training.trains_next_to_constants).words, device)
