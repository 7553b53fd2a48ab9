"""Process-wide settings of Paddle, read as text and restored, its modes, devices, and conversion of arrays."""

import ast
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from packaging.version import Version
from paddle.amp.auto_cast import amp_global_state
from paddle.autograd import saved_tensors_hooks
from paddle.base import core, framework
from paddle.distributed.fleet.utils import recompute
from paddle.distributed.sharding import group_sharded_parallel
from paddle.utils import unique_name

from fixtures.arrays import Array
from fixtures.recipe import Offload
from frameworks.base import GPU, gpu_name, processor
from frameworks.base.recompute import OffloadedActivations, SavedActivations, TensorFiles
from frameworks.contract import Attempt

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


def format_name(dtype: Any) -> str:
    """Name of a Paddle format, such as "float32"."""
    return str(dtype).rsplit(".", 1)[-1].rsplit("DataType.", 1)[-1].lower()


def to_numpy(tensor: Any) -> Array:
    """A copy of a tensor or array; bfloat16, which Paddle returns as bits in uint16, becomes ml_dtypes' bfloat16."""
    value = np.array(tensor if isinstance(tensor, np.ndarray) else tensor.numpy())
    return value.view(ml_dtypes.bfloat16) if format_name(tensor.dtype) in ("bfloat16", "uint16") else value


def to_tensor(value: Array, like: Any = None) -> Any:
    """`value` as a tensor on the current device, in the format of the tensor `like` or else in its own."""
    array = np.ascontiguousarray(value)
    wanted = str(array.dtype) if like is None else format_name(like.dtype)
    if wanted == "bfloat16":
        return paddle.to_tensor(array.astype(np.float32)).astype("bfloat16")
    return paddle.to_tensor(array.astype(wanted))


def copy_of_gradient(parameter: Any) -> Any:
    """A copy of the parameter's gradient. A shared tensor would lose its memory in `clear_grad`."""
    return None if parameter.grad is None else parameter.grad.detach().clone()


def put_gradient(parameter: Any, value: Any) -> None:
    """Makes `value` the gradient of `parameter`; None removes it. Paddle 2 refuses the assignment of None."""
    if value is None:
        parameter.clear_gradient(False)
    else:
        parameter.grad = value


def canonical(value: Array) -> Array:
    """A stored parameter in canonical layout: Paddle keeps convolution kernels as (out, in, height, width)."""
    return value.transpose(2, 3, 1, 0) if value.ndim == 4 else value


def to_paddle_layout(value: Array) -> Array:
    """A canonical parameter in Paddle's layout."""
    return value.transpose(3, 2, 0, 1) if value.ndim == 4 else value


def allocated_bytes(forward: Callable[[], Any]) -> int:
    """The growth of the allocated bytes across `forward`, while the result of `forward` is alive."""
    gc.collect()
    before = _count_allocated_bytes()
    result = forward()
    gc.collect()
    growth = _count_allocated_bytes() - before
    del result
    return growth


def _count_allocated_bytes() -> int:
    device_type, number = in_use()
    if device_type == "cpu":
        return int(core.host_memory_stat_current_value("Allocated", 0))
    if device_type == GPU:
        return int(paddle.device.cuda.memory_allocated())
    return int(core.device_memory_stat_current_value("Allocated", number))


def peak_bytes() -> int:
    """The peak of an accelerator's allocator in this process, in bytes; a CPU's keeps none."""
    device_type, number = in_use()
    if device_type == GPU:
        return int(paddle.device.cuda.max_memory_allocated())
    return int(core.device_memory_stat_peak_value("Allocated", number))


def available() -> tuple[str, ...]:
    """ "cpu" and the types of the other devices that are there, a GPU last."""
    return ("cpu", *map(_suite_name, _device_types()))


def own_name(device: str) -> str:
    """Paddle's name of the device."""
    return next((own for own in _device_types() if _suite_name(own) == device), "cpu")


def current() -> str:
    """The suite's name of the device in use."""
    return _suite_name(in_use()[0])


def place() -> Any:
    """Paddle's `Place` of the device in use."""
    device_type, number = in_use()
    match device_type:
        case "cpu":
            return paddle.CPUPlace()
        case "gpu":
            return paddle.CUDAPlace(number)
        case "xpu":
            return paddle.XPUPlace(number)
        case _:
            return paddle.CustomPlace(device_type, number)


def model_name(device: str) -> str:
    """Model of an accelerator; its type where Paddle does not say."""
    if own_name(device) == GPU:
        return str(paddle.device.cuda.get_device_name())
    describe = getattr(paddle.device, "get_device_name", None)
    return device if describe is None else str(describe())


def in_use() -> tuple[str, int]:
    """Paddle's type of the device in use, and its number."""
    device_type, _, number = paddle.device.get_device().partition(":")
    return device_type, int(number or 0)


def _device_types() -> tuple[str, ...]:
    """Paddle's types of the accelerators that are there, a GPU last."""
    listed = (*paddle.device.get_available_device(), *(paddle.device.get_available_custom_device() or ()))
    types = dict.fromkeys(device.partition(":")[0] for device in listed)
    others = tuple(own for own in types if own not in ("cpu", GPU))
    has_gpu = paddle.device.is_compiled_with_cuda() and paddle.device.cuda.device_count() > 0
    return (*others, GPU) if has_gpu else others


def _suite_name(device_type: str) -> str:
    return gpu_name(cuda=not paddle.device.is_compiled_with_rocm(), rocm=True) if device_type == GPU else device_type


class Stream:
    """A random stream of its own over Paddle's one generator for each device.

    Inside `with_fresh_names()` generated names start again (so that parameters and optimizer slots have the same names
    in every run and process), and the leaking `amp_dtype` is restored at its end; inside `open()` the generator has
    this stream's state, too.
    """

    def __init__(self, seed: int) -> None:
        before = paddle.get_rng_state()
        paddle.seed(seed)
        self.state = paddle.get_rng_state()
        paddle.set_rng_state(before)

    @contextmanager
    def with_fresh_names(self) -> Iterator[None]:
        """A context that draws no random numbers."""
        dtype = amp_global_state().amp_dtype
        try:
            with unique_name.guard():
                yield
        finally:
            amp_global_state().amp_dtype = dtype

    @contextmanager
    def open(self) -> Iterator[None]:
        """A context that draws random numbers from this stream."""
        outer = paddle.get_rng_state()
        paddle.set_rng_state(self.state)
        try:
            with self.with_fresh_names():
                yield
        finally:
            self.state = paddle.get_rng_state()
            paddle.set_rng_state(outer)

    def words(self) -> Array:
        """The generator's state as integers; the printed form also holds an address, which is left out."""
        numbers = [int(word) % 2**64 for word in str(self.state[0]).split() if not word.startswith("0x")]
        return np.array(numbers, np.uint64)


ONE_PAIR = "saved_tensors_hooks takes one pair at a time, and recompute(use_reentrant=False) opens its own"
"""Reason: activations that hooks recompute cannot be offloaded by hooks."""


def activations_of(offload: Offload | None) -> SavedActivations:
    """The offload of a run.

    Raises:
        OSError: the run's folder cannot be made.
    """
    if offload is None:
        return SavedActivations()
    files = TensorFiles(offload.folder, _save, _load, ".pdtensor")
    return OffloadedActivations(saved_tensors_hooks, files.pack, files.unpack, _size)


def _save(tensor: Any, path: Path) -> None:
    paddle.save({"value": tensor.detach(), "stop_gradient": tensor.stop_gradient}, str(path))


def _load(path: Path) -> Any:
    """The tensor, with a gradient if it had one: reentrant recomputation asks its saved inputs."""
    saved = paddle.load(str(path))
    saved["value"].stop_gradient = saved["stop_gradient"]
    return saved["value"]


def _size(tensor: Any) -> int:
    return int(tensor.size) * int(tensor.element_size())


def hooks_nest() -> bool:
    """Returns whether hooks may be opened inside others, as recomputation by hooks would."""
    with saved_tensors_hooks(lambda value: value, lambda value: value):
        layer = paddle.nn.Linear(2, 2)
        recompute(layer, paddle.ones([1, 2]), use_reentrant=False).sum().backward()
    return layer.weight.grad is not None


def offloads_shards() -> bool:
    """Returns whether `group_sharded_parallel`, which alone offloads parameters and moments, takes this device."""
    layer = paddle.nn.Linear(2, 2)
    optimizer = paddle.optimizer.AdamW(parameters=layer.parameters())
    group_sharded_parallel(layer, optimizer, "p_g_os", offload=True)
    return True
