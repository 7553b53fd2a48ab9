"""Capabilities of Paddle's dynamic graph and of both graphs, unsupported ones with reasons, and attempts.

Attempts make Paddle's own calls in the dynamic graph, without this adapter's guards.
"""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import paddle

from frameworks.base import OF_ONE_PLACE
from frameworks.contract import Attempt, Capability
from frameworks.operations import CATALOGUE
from frameworks.paddle.core import settings
from frameworks.paddle.core.layers import OPERATIONS
from frameworks.paddle.core.settings import DATA_PARALLEL, DYGRAPH, format_name, to_tensor
from frameworks.paddle.training.optimizers import OPTIMIZERS, forced_scaler, quiet
from frameworks.paddle.training.trainer import NO_BACKGROUND

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
        *OPTIMIZERS,
    }
)
"""Capabilities of both graphs without ranks."""
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
    Capability.SAVED_VALUES,
}
_OF_ONE_MODE = {Capability.PLATEAU, Capability.FUNCTION_USES, Capability.SAVED_VALUES}
_IN_ONE_PLACE = OF_ONE_PLACE | {
    Capability.FROZEN,
    Capability.FREEZE,
    Capability.GROUP_RATES,
    Capability.LOAD_ORDER,
    Capability.LIVE_STATE,
}


def capabilities_of(mode: str) -> frozenset[Capability]:
    """Capabilities of the dynamic graph in a mode, before `refusals`."""
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
    """Unsupported capabilities of the dynamic graph on a device, with reasons; `forced`: the scaler works on a CPU."""
    reasons = {Capability.AVERAGE: _AVERAGE}
    if device == "cpu":
        reasons |= dict.fromkeys(PRECISIONS, _LOW_MODEL_ON_CPU)
        reasons |= dict.fromkeys((Capability.O1_FLOAT16, Capability.O1_BFLOAT16, *SCOPES), _SCOPE_ON_CPU)
        reasons |= {} if forced else dict.fromkeys(SCALING, _SCALER_ON_CPU)
        reasons |= _RANKS | _OFFLOAD | {Capability.BACKGROUND_SAVES: NO_BACKGROUND}
    return reasons | refused_in_both_graphs(device)


def _weight(value: float = 1.0) -> Any:
    weight = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(value))
    return weight, paddle.optimizer.SGD(0.5, parameters=[weight])


def _step(scaler: Any, weight: Any, optimizer: Any, gradient: float) -> tuple[float, float]:
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
    return weight.item(), float(scaler.state_dict()["scale"][0])


def _dynamic() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    return _step(scaler, weight, optimizer, float("inf")) == (1.0, 4.0)


def _static() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, use_dynamic_loss_scaling=False)
    return scaler.scale(weight.sum()).item() == 8.0 and _step(scaler, weight, optimizer, float("inf")) == (1.0, 8.0)


def _factors() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, incr_ratio=4.0, decr_ratio=0.25, incr_every_n_steps=1)
    grown = _step(scaler, weight, optimizer, 1.0)
    return grown == (0.5, 32.0) and _step(scaler, weight, optimizer, float("nan")) == (0.5, 8.0)


def _unscale() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    before = weight.grad.item()
    scaler.unscale_(optimizer)
    return before == 24.0 and weight.grad.item() == 3.0


def _unscale_twice() -> bool:
    weight, optimizer = _weight()
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
    scaler.scale((weight * 3.0).sum()).backward()
    scaler.unscale_(optimizer)
    try:
        scaler.unscale_(optimizer)
    except RuntimeError:
        return True
    return False


def _average() -> bool:
    weight, _ = _weight()
    average = paddle.static.ExponentialMovingAverage(0.5)
    average.update()
    return weight.item() == 1.0


def dynamic_attempts(*, forced: bool) -> Mapping[Capability, Attempt]:
    """The attempts; each leaves the process-wide settings as they were.

    Deprecation warnings of NumPy caused by Paddle's own code are ignored.

    Args:
        forced: a `GradScaler` works where Paddle turns it off.
    """
    return {capability: partial(_alone, attempt, forced=forced) for capability, attempt in _ATTEMPTS.items()}


def _alone(attempt: Attempt, *, forced: bool) -> bool:
    before = settings.read_settings()
    try:
        with quiet(), forced_scaler() if forced else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return attempt()
    finally:
        settings.restore_settings(before)


def _scope(dtype: str, **lists: Any) -> str:
    x = paddle.ones([2, 2])
    with paddle.amp.auto_cast(level="O1", dtype=dtype, **lists):
        return format_name(paddle.matmul(x, x).dtype)


def _low(dtype: str, *, master: bool, decorated: bool) -> bool:
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.Adam(parameters=layer.parameters(), multi_precision=master)
    if decorated:
        paddle.amp.decorate(
            models=layer, optimizers=optimizer, level="O2", dtype=dtype, master_weight=None if master else False
        )
    else:
        layer.to(dtype=dtype)
    if format_name(layer.weight.dtype) != dtype:
        return False
    with paddle.amp.auto_cast(level="O2", dtype=dtype) if decorated else nullcontext():
        output = layer(paddle.ones([2, 2], dtype))
    output.astype("float32").sum().backward()
    optimizer.step()
    return bool(optimizer.state_dict().get("master_weights")) == master


def _low_model(dtype: str, *, master: bool) -> bool:
    """Returns whether a low model by `amp.decorate` or `Layer.to` makes an update, with float32 masters or without."""
    for decorated in (True, False):
        with suppress(Exception):  # Paddle raises various types for what it has no kernel for
            if _low(dtype, master=master, decorated=decorated):
                return True
    return False


def _tf32() -> bool:
    ones = paddle.full([16, 16], 1.0 + 2.0**-12)
    products = []
    for allowed in (True, False):
        with settings.tf32_products(allowed):
            products.append(paddle.matmul(ones, ones).numpy())
    return not np.array_equal(*products)


def _operations() -> bool:
    for dtype in ("float16", "bfloat16"):
        for name, arrays in CATALOGUE.items():
            tensors = [to_tensor(array) for array in arrays()]
            OPERATIONS[name](*(t.astype(dtype) if t.is_floating_point() else t for t in tensors))
    return True


_ATTEMPTS: dict[Capability, Attempt] = {
    Capability.DYNAMIC_SCALING: _dynamic,
    Capability.STATIC_SCALING: _static,
    Capability.SCALING_FACTORS: _factors,
    Capability.EXPLICIT_UNSCALE: _unscale,
    Capability.SECOND_UNSCALE: _unscale_twice,
    Capability.AVERAGE: _average,
    Capability.O1_FLOAT16: lambda: _scope("float16") == "float16",
    Capability.O1_BFLOAT16: lambda: _scope("bfloat16") == "bfloat16",
    Capability.O2_FLOAT16: partial(_low_model, "float16", master=True),
    Capability.O2_BFLOAT16: partial(_low_model, "bfloat16", master=True),
    Capability.O3_FLOAT16: partial(_low_model, "float16", master=False),
    Capability.O3_BFLOAT16: partial(_low_model, "bfloat16", master=False),
    Capability.AUTOCAST_SCOPE: lambda: _scope("bfloat16") == "bfloat16",
    Capability.AUTOCAST_LISTS: lambda: (
        _scope("bfloat16") == "bfloat16" and _scope("bfloat16", custom_black_list={"matmul"}) == "float32"
    ),
    Capability.TF32: _tf32,
    Capability.OPERATIONS: _operations,
    Capability.PEAK_BYTES: lambda: int(paddle.device.max_memory_allocated()) > 0,
}
