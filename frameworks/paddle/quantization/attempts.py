"""Attempts of 8-bit weights and products that have kernels for GPUs alone, and of groups of codes."""

from functools import partial
from typing import Any

import paddle
from paddle.nn.quant import llm_int8_linear, weight_only_linear, weight_quantize
from paddle.quantization import PTQ, QuantConfig
from paddle.quantization.observers import GroupWiseWeightObserver

from frameworks.contract import Attempt, Capability
from frameworks.paddle.core.modes import in_dynamic_mode

_GROUP = 64


def _operands(format_name: str) -> tuple[Any, Any]:
    return paddle.ones([1, 64]).astype(format_name), paddle.ones([64, 32]).astype(format_name)


def _loads_int8() -> bool:
    x, weight = _operands("float16")
    codes, scale = weight_quantize(weight, algo="llm.int8", arch=80)
    return bool((llm_int8_linear(x, codes, weight_scale=scale) == 64).all())


def _multiplies_weights(algorithm: str) -> bool:
    x, weight = _operands("float16")
    codes, scale = weight_quantize(weight, algo=f"weight_only_{algorithm}", arch=80)
    return bool((weight_only_linear(x, codes, weight_scale=scale, weight_dtype=algorithm, arch=80) == 64).all())


def _multiplies_float8() -> bool:
    x, weight = _operands("float8_e4m3fn")
    try:
        product = paddle.linalg.fp8_fp8_half_gemm_fused(x, weight.t(), transpose_y=True, output_dtype="float16")
    except RuntimeError:
        product = paddle.matmul(x, weight)
    return bool((product.astype("float32") == 64).all())


def _groups_by_64() -> bool:
    model = paddle.nn.Sequential(paddle.nn.Linear(_GROUP, 2))
    model.eval()
    weight = GroupWiseWeightObserver(quant_bits=4, group_size=_GROUP)
    observed = PTQ(QuantConfig(activation=None, weight=weight)).quantize(model)
    observed(paddle.zeros([1, _GROUP]))
    return bool(observed[0].weight_quanter.scales().shape[0] == 1)


def gpu_kernel_attempts(device: str) -> dict[Capability, Attempt]:
    """The calls, in dynamic mode, which their kernels share with the static graph."""
    kernels: dict[Capability, Attempt] = {
        Capability.LOAD_INT8: _loads_int8,
        Capability.WEIGHT_INT8: partial(_multiplies_weights, "int8"),
        Capability.WEIGHT_INT4: partial(_multiplies_weights, "int4"),
        Capability.FLOAT8_PRODUCTS: _multiplies_float8,
    }
    calls = {Capability.INT4_GROUP: _groups_by_64, **(kernels if device == "cpu" else {})}
    return {capability: partial(in_dynamic_mode, call) for capability, call in calls.items()}
