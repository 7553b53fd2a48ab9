"""Process-wide settings of Paddle that results depend on, read as text and restored, and the supported modes."""

import ast
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import paddle
from packaging.version import Version
from paddle.amp.auto_cast import amp_global_state
from paddle.base import core, framework

from frameworks.base import processor
from frameworks.contract import Attempt
from frameworks.paddle.core.devices import model_name

DYGRAPH, STATIC, FORCED, DATA_PARALLEL = "dygraph", "static", "dygraph-forced-scaler", "data-parallel"
_PIR = Version("3.0.0")
"""The first version whose `auto_cast` works in the static graph; in earlier ones it raises there."""
_STATIC_MODES = (STATIC,) if Version(paddle.__version__) >= _PIR else ()
MODES = (DYGRAPH, *_STATIC_MODES, FORCED, DATA_PARALLEL)

_FLAGS = ("FLAGS_check_nan_inf", "FLAGS_enable_pir_api", "FLAGS_paddle_num_threads")

_NUMERIC_FLAGS = (
    "FLAGS_blha_use_fp32_qk_sum",
    "FLAGS_cublaslt_exhaustive_search_times",
    "FLAGS_cudnn_batchnorm_spatial_persistent",
    "FLAGS_cudnn_deterministic",
    "FLAGS_cudnn_exhaustive_search",
    "FLAGS_einsum_opt",
    "FLAGS_embedding_deterministic",
    "FLAGS_enable_api_kernel_fallback",
    "FLAGS_enable_auto_layout_pass",
    "FLAGS_enable_auto_parallel_align_mode",
    "FLAGS_enable_cublas_tensor_op_math",
    "FLAGS_enable_fuse_parallel_matmul_pass",
    "FLAGS_gemm_use_half_precision_compute_type",
    "FLAGS_inner_op_parallelism",
    "FLAGS_low_precision_op_list",
    "FLAGS_max_inplace_grad_add",
    "FLAGS_prim_all",
    "FLAGS_prim_backward",
    "FLAGS_prim_enable_dynamic",
    "FLAGS_prim_forward",
    "FLAGS_set_to_1d",
    "FLAGS_sort_sum_gradient",
    "FLAGS_tracer_mkldnn_ops_off",
    "FLAGS_tracer_mkldnn_ops_on",
    "FLAGS_tracer_onednn_ops_off",
    "FLAGS_tracer_onednn_ops_on",
    "FLAGS_use_accuracy_compatible_kernel",
    "FLAGS_use_autotune",
    "FLAGS_use_cinn",
    "FLAGS_use_fast_math",
    "FLAGS_use_legacy_gemm",
    "FLAGS_use_legacy_linear",
    "FLAGS_use_mkldnn",
    "FLAGS_use_onednn",
    "FLAGS_use_stride_compute_kernel",
    "FLAGS_use_stride_kernel",
)
"""Flags that choose kernels, their precision or the order of their sums; each version and build has some of them."""


def _amp_state() -> Any:
    """The object with the level and format of the open precision scope: the tracer, PIR, or None in static Paddle 2."""
    if paddle.in_dynamic_mode():
        return framework._dygraph_tracer()
    return core._get_amp_attrs() if hasattr(core, "_get_amp_attrs") else None


def open_scope() -> Callable[[], AbstractContextManager[None]]:
    """A function that opens the present precision scope again, without a user's lists."""
    amp = _amp_state()
    level = "O0" if amp is None else amp._amp_level.name
    if level not in ("O1", "O2"):
        return nullcontext
    return partial(paddle.amp.auto_cast, level=level, dtype=str(amp._amp_dtype))


def read_settings() -> dict[str, str]:
    """Mode, device, default format, gradient mode, open precision scope, last scope's format and flags."""
    amp = _amp_state()
    flags = {name: str(value) for name, value in paddle.get_flags(list(_FLAGS)).items()}
    return {
        "dynamic": str(paddle.in_dynamic_mode()),
        "device": str(paddle.device.get_device()),
        "default_dtype": str(paddle.get_default_dtype()),
        "grad": str(paddle.is_grad_enabled()) if paddle.in_dynamic_mode() else "n/a",
        "scope_level": "n/a" if amp is None else amp._amp_level.name,
        "scope_dtype": "n/a" if amp is None else str(amp._amp_dtype),
        "last_scope_dtype": str(amp_global_state().amp_dtype),
        **flags,
    }


def restore_settings(state: Mapping[str, str]) -> None:
    """Restores what `read_settings` returned."""
    if state["dynamic"] == "True":
        paddle.disable_static()
    else:
        paddle.enable_static()
    if paddle.device.get_device() != state["device"]:
        paddle.device.set_device(state["device"])
    paddle.set_default_dtype(state["default_dtype"])
    if state["grad"] != "n/a":
        paddle.set_grad_enabled(state["grad"] == "True")
    amp = _amp_state()
    if amp is not None and state["scope_level"] != "n/a":
        amp._amp_level = core.AmpLevel.__members__[state["scope_level"]]
        amp._amp_dtype = state["scope_dtype"]
    amp_global_state().amp_dtype = state["last_scope_dtype"]
    changed = {name: state[name] for name in _FLAGS if str(paddle.get_flags([name])[name]) != state[name]}
    if changed:
        paddle.set_flags({name: ast.literal_eval(value) for name, value in changed.items()})


def let_tf32(allowed: bool) -> None:
    """Allows or forbids TensorFloat-32 in products of float32 matrices and convolutions."""
    core.set_cublas_switch(allowed)
    core.set_cudnn_switch(allowed)


@contextmanager
def tf32_products(allowed: bool | None) -> Iterator[None]:
    """A context with the setting of `let_tf32`; None: allowed, which is Paddle's default."""
    former = core.get_cublas_switch(), core.get_cudnn_switch()
    let_tf32(allowed is not False)
    try:
        yield
    finally:
        core.set_cublas_switch(former[0])
        core.set_cudnn_switch(former[1])


def read_environment(device: str) -> dict[str, str]:
    """Device model, versions, flags and thread counts that results may depend on."""
    flags = paddle.get_flags(list(_FLAGS))
    result: dict[str, object] = {
        "device": processor() if device == "cpu" else model_name(device),
        "commit": paddle.version.commit,
        "numpy": np.__version__,
        "threads": flags["FLAGS_paddle_num_threads"],
        "pir": flags["FLAGS_enable_pir_api"],
        "cuda": paddle.version.cuda(),
        "default-dtype": paddle.get_default_dtype(),
        "nan-check": flags["FLAGS_check_nan_inf"],
    }
    for name in _NUMERIC_FLAGS:
        with suppress(ValueError):  # this version or build may lack the flag
            result[name] = paddle.get_flags([name])[name]
    if device == "cuda":
        result |= {
            "cudnn": paddle.version.cudnn(),
            "capability": ".".join(str(part) for part in paddle.device.cuda.get_device_capability()),
            "tf32.matmul": core.get_cublas_switch(),
            "tf32.cudnn": core.get_cudnn_switch(),
        }
    return {name: str(value) for name, value in result.items()}


def in_dynamic_mode(attempt: Attempt) -> bool:
    """The result of an attempt that runs in the dynamic graph, from either graph."""
    with paddle.base.dygraph.guard():
        return attempt()
