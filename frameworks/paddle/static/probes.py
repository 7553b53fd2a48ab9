"""Attempts of the static graph, by capability."""

import json
import os
import signal
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


_OFFLOADED_CHECKPOINTS: dict[str, Any] = {
    "recompute": True,
    "recompute_configs": {"checkpoints": ["x"], "enable_offload": True, "checkpoint_shape": [1, 1]},
}
_OFFLOADED_MOMENTS: dict[str, Any] = {"sharding": True, "sharding_configs": {"optimize_offload": True}}

_ATTEMPTS: dict[Capability, tuple[Any, ...]] = {
    # supported
    Capability.O1_FLOAT16: (training.casts, "O1", "float16"),
    Capability.O1_BFLOAT16: (training.casts, "O1", "bfloat16"),
    Capability.O2_FLOAT16: (training.low_weights, "float16", True),
    Capability.O2_BFLOAT16: (training.low_weights, "bfloat16", True),
    Capability.O3_FLOAT16: (training.low_weights, "float16", False),
    Capability.O3_BFLOAT16: (training.low_weights, "bfloat16", False),
    Capability.TF32: (execution.tf32,),
    Capability.AUTOCAST_SCOPE: (training.casts, "O1", "bfloat16"),
    Capability.AUTOCAST_LISTS: (training.lists,),
    Capability.OPERATIONS: (execution.operations,),
    Capability.DYNAMIC_SCALING: (training.dynamic_scaling,),
    Capability.STATIC_SCALING: (training.static_scaling,),
    Capability.SCALING_FACTORS: (training.scaling_factors,),
    Capability.EXPLICIT_UNSCALE: (training.explicit_unscale,),
    Capability.SECOND_UNSCALE: (training.explicit_unscale,),
    Capability.TWO_LOSSES: (training.two_losses,),
    Capability.ACCUMULATION: (execution.merged_gradients,),
    Capability.PARTIAL_WINDOW: (execution.merged_gradients,),
    Capability.RECOMPUTE: (execution.recompute_operations,),
    Capability.RECOMPUTE_NESTED: (execution.recompute_operations,),
    Capability.RECOMPUTE_CASES: (execution.recompute_operations,),
    Capability.SEGMENT_CALLS: (execution.segment_calls,),
    Capability.GROUPS: (training.groups,),
    Capability.AVERAGE: (execution.average,),
    Capability.SAVED_BYTES: (execution.saved_bytes,),
    Capability.PEAK_BYTES: (execution.peak_bytes,),
    # refused
    Capability.TENSOR_RATE: (refused.tensor_rate,),
    Capability.GROUP_RATES: (training.groups,),
    Capability.OFFLOAD_ACTIVATIONS: (refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_HOST: (refused.fleet_offload, _OFFLOADED_CHECKPOINTS),
    Capability.OFFLOAD_OPTIMIZER: (refused.fleet_offload, _OFFLOADED_MOMENTS),
    Capability.OFFLOAD_PARAMETERS: (refused.sharded_parameters,),
    Capability.OFFLOAD_DISK: (refused.saved_tensors,),
    Capability.INT8_ROW: (refused.channel_codes,),
    Capability.INT8_COLUMN: (refused.channel_codes,),
    Capability.FAKE_INT8_COLUMN: (refused.qat_program, {"weight_quantize_type": "channel_wise_abs_max"}),
    Capability.UINT8_TENSOR: (refused.qat_program, {"dtype": "uint8"}),
    Capability.QAT: (refused.qat_layers,),
    Capability.CONVERT: (refused.qat_layers,),
    Capability.INTEGER_PRODUCTS: (refused.integer_product,),
    Capability.FLOAT8_E4M3FN: (refused.narrow_codes, "float8_e4m3fn"),
    Capability.FLOAT8_E5M2: (refused.narrow_codes, "float8_e5m2"),
}


def static_attempts(device: str) -> Mapping[Capability, Attempt]:
    """The attempts on a device."""
    return {capability: partial(acts, device, *call) for capability, call in _ATTEMPTS.items()}


def acts(device: str, function: Callable[..., None], *arguments: object) -> bool:
    """Whether a function of `frameworks.paddle.static.attempts` returns, for a program on the device.

    A crash is a failure like an exception.
    """
    return _returns(device, f"{function.__module__}:{function.__name__}", json.dumps(arguments))


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
    command = [sys.executable, "-P", "-W", "ignore", "-m", "frameworks.paddle.static.attempts", own_name(device)]
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
