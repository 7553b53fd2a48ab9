"""Process-wide settings of PyTorch that results depend on or that a run or an attempt may leak, and the compiler."""

import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from frameworks.cache_folder import cache_folder
from frameworks.torch.core import devices
from frameworks.torch.core.devices import dtype_name

P = ParamSpec("P")
R = TypeVar("R")

COMPILE, DYNAMIC = "compile", "compile-dynamic"
MODES = (COMPILE, DYNAMIC)
"""Compiled modes: PyTorch's default, which specializes on sizes until they change, and programs for all sizes."""
_ISOLATION = "isolate_recompiles"
_SPECIALIZATIONS: WeakKeyDictionary[Callable[..., Any], set[Hashable]] = WeakKeyDictionary()
"""By function of all sizes, the `_specialization` of each program that it has; a reset of the compiler removes them."""

_LIBRARIES = ("accelerate", "bitsandbytes", "deepspeed", "torchao", "transformers")
"""Optional libraries of modes and recipes."""

_SWITCHES = (
    "backends.fp32_precision",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.allow_tf32",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "backends.cuda.preferred_linalg_library",
    "backends.cuda.preferred_blas_library",
    "backends.mha.get_fastpath_enabled",
    "backends.opt_einsum.enabled",
    "backends.quantized.engine",
    "utils.deterministic.fill_uninitialized_memory",
    "version.git_version",
)
"""Attributes and functions of `torch`; each version has some of them."""

_LIBRARY = re.compile(
    r"^\s*- (?:Intel\(R\) )?(oneAPI Math Kernel Library|MKL-DNN|GCC) (?:Version )?(\S+)", re.MULTILINE
)
"""The compiler and the libraries of kernels that torch was built with, and their versions."""

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))  # default: a temporary folder


def _is_true(text: str) -> bool:
    return text == "True"


def _scopes() -> tuple[str, ...]:
    """Devices that have a precision scope of their own; "cuda" has one without a GPU."""
    return tuple(dict.fromkeys(("cpu", "cuda", *devices.available())))


def read_settings() -> dict[str, str]:
    """Every setting that `write_settings` can restore, by name."""
    result: dict[str, object] = {
        "default-dtype": dtype_name(torch.get_default_dtype()),
        "grad-mode": torch.is_grad_enabled(),
        "autocast.cache": torch.is_autocast_cache_enabled(),
        "threads": torch.get_num_threads(),
        "matmul-precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic.warn-only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly-mode": torch.is_anomaly_enabled(),
        "anomaly-mode.check-nan": torch.is_anomaly_check_nan_enabled(),
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "quantized.engine": torch.backends.quantized.engine,
    }
    for scope in _scopes():
        result[f"autocast.{scope}"] = torch.is_autocast_enabled(scope)
        result[f"autocast.{scope}.dtype"] = dtype_name(torch.get_autocast_dtype(scope))
    return {name: str(value) for name, value in result.items()}


def write_settings(state: Mapping[str, str]) -> None:
    """Restores what `read_settings` returned."""
    torch.set_default_dtype(getattr(torch, state["default-dtype"]))
    torch.set_grad_enabled(_is_true(state["grad-mode"]))
    torch.set_autocast_cache_enabled(_is_true(state["autocast.cache"]))
    torch.set_num_threads(int(state["threads"]))
    if torch.get_float32_matmul_precision() != state["matmul-precision"]:
        torch.set_float32_matmul_precision(state["matmul-precision"])
    torch.use_deterministic_algorithms(
        _is_true(state["deterministic"]), warn_only=_is_true(state["deterministic.warn-only"])
    )
    torch.autograd.set_detect_anomaly(_is_true(state["anomaly-mode"]), _is_true(state["anomaly-mode.check-nan"]))
    torch.backends.cudnn.enabled = _is_true(state["cudnn.enabled"])
    torch.backends.cudnn.benchmark = _is_true(state["cudnn.benchmark"])
    torch.backends.cudnn.deterministic = _is_true(state["cudnn.deterministic"])
    if torch.backends.quantized.engine != state["quantized.engine"]:
        torch.backends.quantized.engine = state["quantized.engine"]
    for scope in _scopes():
        torch.set_autocast_enabled(scope, _is_true(state[f"autocast.{scope}"]))
        torch.set_autocast_dtype(scope, getattr(torch, state[f"autocast.{scope}.dtype"]))


def pin_kernels() -> None:
    """Pins convolutions on a GPU: float32, not TensorFloat-32 as by default, and one order of addition."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


@contextmanager
def tf32_products(allowed: bool | None) -> Iterator[None]:
    """Allows or forbids TensorFloat-32 in products of float32 matrices; None: PyTorch's default."""
    former = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)


def multiplies_in_tf32(device: str) -> bool:
    """Returns whether a float32 matmul drops a bit that TensorFloat-32 lacks, where TensorFloat-32 is allowed."""
    factor = torch.full((64, 64), 1.0 + 2.0**-12, device=device)
    with tf32_products(True):
        return bool((factor @ torch.eye(64, device=device) == 1.0).all())


def _switches() -> dict[str, object]:
    """Precision and determinism switches that this version has, by name; a mix of old and new ones cannot be read."""
    values: dict[str, object] = {}
    for name in _SWITCHES:
        try:
            value = attrgetter(name)(torch)
            values[name.removeprefix("backends.")] = value() if callable(value) else value
        except (AttributeError, RuntimeError):
            continue
    return values


def read_environment(device: str) -> dict[str, str]:
    """Device model, versions, precision switches and thread counts that results may depend on."""
    result: dict[str, object] = {
        "device": devices.model_name(device),
        "cpu-capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": torch.backends.mkldnn.is_available(),
        "mkl": torch.backends.mkl.is_available(),
        "threads": torch.get_num_threads(),
        "interop-threads": torch.get_num_interop_threads(),
        "matmul-precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic.warn-only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "default-dtype": dtype_name(torch.get_default_dtype()),
        "numpy": np.__version__,
        **_switches(),
        **{f"built-with.{name}": number for name, number in _LIBRARY.findall(torch.__config__.show())},
    }
    result |= {library: version(library) for library in _LIBRARIES if find_spec(library) is not None}
    if device == "cuda":
        result |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": ".".join(str(part) for part in torch.cuda.get_device_capability()),
            "tf32.matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32.cudnn": torch.backends.cudnn.allow_tf32,
            "reduced-precision.float16": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            "reduced-precision.bfloat16": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        }
    return {name: str(value) for name, value in result.items()}


def begin_anew() -> None:
    """Resets the compiler, as in a new process.

    PyTorch counts variants and records shapes for each code object, which all runs of a process share.
    """
    torch.compiler.reset()
    for programs in _SPECIALIZATIONS.values():
        programs.clear()


def compile_function(function: Callable[P, R], mode: str) -> Callable[P, R]:
    """The function as one compiled graph, or an error: a graph break or too many variants never run eagerly.

    Variants are counted for each call of `torch.compile` where PyTorch can count them so. In mode "compile-dynamic" an
    error is also a second program for arguments that differ from earlier ones in their sizes alone.
    """
    options: dict[str, Any] = {"dynamic": True} if mode == DYNAMIC else {}
    if _ISOLATION in signature(torch.compile).parameters:
        options[_ISOLATION] = True
    call = torch.compile(function, fullgraph=True, **options)
    return _once_for_all_sizes(call) if mode == DYNAMIC and hasattr(torch.compiler, "set_stance") else call


def _once_for_all_sizes(call: Callable[P, R]) -> Callable[P, R]:
    """The compiled function, which may not compile again for arguments that only have other sizes."""
    programs: set[Hashable] = set()

    def call_without_recompiling(*args: P.args, **kwargs: P.kwargs) -> R:
        key = _specialization(args, kwargs)
        if key not in programs:
            programs.add(key)
            return call(*args, **kwargs)
        with torch.compiler.set_stance("fail_on_recompile"):
            return call(*args, **kwargs)

    _SPECIALIZATIONS[call_without_recompiling] = programs
    return call_without_recompiling


def _specialization(*arguments: object) -> Hashable:
    """The arguments without their sizes; PyTorch specializes programs on sizes of 0 and 1, and on equal sizes."""
    leaves, structure = tree_flatten(arguments)
    sizes = [size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape]
    tensors = [
        (leaf.dtype, leaf.dim(), leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    equal = [size if size < 2 else -1 - sizes.index(size) for size in sizes]
    return torch.is_grad_enabled(), str(structure), tuple(tensors), tuple(equal)


def without_buffer_donation() -> AbstractContextManager[None]:
    """A scope in which compiled backward passes keep their buffers, so that a graph can run backward twice."""
    return torch._functorch.config.patch(donated_buffer=False)
